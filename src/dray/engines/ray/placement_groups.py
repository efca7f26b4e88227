"""Placement groups of Ray's."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import ray
from ray.util.placement_group import PlacementGroup as RaysGroup
from ray.util.placement_group import placement_group_table, remove_placement_group

from dray.engines.object_ref import ObjectRef
from dray.engines.placement_group import PlacementGroup
from dray.engines.ray.errors import ended_with_group, translate
from dray.engines.ray.references import RayRef, end_with_group, show_as
from dray.engines.ray.waits import hear_signals
from dray.engines.runtime import GROUP_REMOVED, Described, Group, Returned
from dray.errors import ConfigError

_STEP_S = 1  # Ray waits for whole seconds
# For how long a group that was there is taken to be there still.
_FRESH_S = 5.0

# The results of tasks, and Ray's handles, of this process in placement groups, by the group's id.
_results: defaultdict[str, WeakSet[Any]] = defaultdict(WeakSet)
_actors: defaultdict[str, WeakSet[Any]] = defaultdict(WeakSet)


class RayGroup(Group):
    """A placement group of Ray's."""

    def __init__(self, ray_group: RaysGroup) -> None:
        self.ray_group = ray_group
        self._seen_at = -math.inf
        self._removed = False

    @functools.cached_property
    def bundles(self) -> Sequence[Mapping[str, float]]:  # type: ignore[override]
        """Name to quantity, for each bundle; the cluster is asked once."""
        return [dict(bundle) for bundle in self.ray_group.bundle_specs]

    @property
    def group_id(self) -> str:
        text: str = self.ray_group.id.hex()
        return text

    def ready(self) -> ObjectRef:
        return RayRef(self.ray_group.ready())

    def wait(self, timeout_s: float | None) -> bool:
        # Ray hears of nothing as it waits for a group, so it has to come back.
        for _ in itertools.count() if timeout_s is None else range(int(timeout_s)):
            with hear_signals():
                there = self._wait(_STEP_S)
            if there or self._removed:
                return there
        with hear_signals():
            return self._wait((timeout_s or 0) % _STEP_S)

    def _wait(self, seconds: float) -> bool:
        """Wait for one step, or for less."""
        try:
            if seconds == _STEP_S:
                return bool(self.ray_group.wait(_STEP_S))
            if seconds and not self._is_there():
                ray.wait([self.ray_group.ready()], timeout=seconds)
            return self._is_there()  # the reference is ready also when the group is gone
        except Exception as error:
            if "does not exist" not in str(error):  # Ray has no type of its own for it
                raise translate(error) from error
            self._removed = True
            return False

    def _is_there(self) -> bool:
        """Return whether all bundles are set aside now."""
        return bool(placement_group_table(self.ray_group).get("state") == "CREATED")

    def check(self) -> None:
        """Return if it has not been removed, as far as is known: what waits for it would hang."""
        if not self._removed and time.monotonic() - self._seen_at > _FRESH_S:
            self._removed = placement_group_table(self.ray_group).get("state") == "REMOVED"
            self._seen_at = time.monotonic()
        if self._removed:
            raise ConfigError(GROUP_REMOVED)

    def add_results(self, returned: Returned) -> None:
        """Keep in mind what a task returns that runs in it."""
        refs = returned if isinstance(returned, list) else [returned]
        _results[self.group_id].update(refs)

    def add_actor(self, handle: Any) -> None:
        _actors[self.group_id].add(handle)

    def remove(self) -> None:
        """Give the bundles back, and end what runs in them or waits for them."""
        remove_placement_group(self.ray_group)
        self._removed = True
        end_with_group(_results.pop(self.group_id, ()))
        for handle in _actors.pop(self.group_id, ()):
            # Ray would wait for ever to make it there, be it again.
            ended_with_group.add(handle._actor_id.hex())
            ray.kill(handle)

    def __reduce__(self) -> tuple[object, ...]:
        return (RayGroup, (self.ray_group,))


show_as(RaysGroup, lambda group: PlacementGroup(RayGroup(group)))


def group_of(group_id: str) -> RayGroup:
    """Return the placement group with an id."""
    return RayGroup(RaysGroup(ray.PlacementGroupID(bytes.fromhex(group_id))))


def all_groups() -> list[Described]:
    """Return what Ray knows of every placement group."""
    shown = ("placement_group_id", "name", "state", "strategy", "bundles", "bundles_to_node_id")
    return [{key: entry.get(key) for key in shown} for entry in placement_group_table().values()]
