"""The public paths below `dray.util` that users of Ray expect."""

from dray.answers import answer_for
from dray.util import accelerators
from dray.util.actor_pool import ActorPool
from dray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "ActorPool",
    "accelerators",
    "get_current_placement_group",
    "get_placement_group",
    "placement_group",
    "placement_group_table",
    "remove_placement_group",
]

answer_for(__name__, later=("queue", "scheduling_strategies"))
