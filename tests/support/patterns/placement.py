"""A placement group: tasks and actors in its bundles, what they start, and its end."""

import ray
from ray.util import get_current_placement_group
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(num_cpus=1)
def where() -> bool:
    return get_current_placement_group() is not None


@ray.remote(num_cpus=1)
class Parent:
    def child(self) -> bool:
        return ray.get(where.remote())


ray.init()
group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK")
ray.get(group.ready())
print("bundles", group.bundle_count, placement_group_table(group)["state"])
strategy = PlacementGroupSchedulingStrategy(
    placement_group=group,
    placement_group_bundle_index=0,
    placement_group_capture_child_tasks=True,
)
outside = where.options(num_cpus=0)  # the group may have all CPUs of the machine
print(ray.get(where.options(scheduling_strategy=strategy).remote()), ray.get(outside.remote()))
parent = Parent.options(scheduling_strategy=strategy).remote()
print("child in it", ray.get(parent.child.remote()))
remove_placement_group(group)
print(placement_group_table(group)["state"])
