"""A placement group as programs use it, and the value of the object that says when it is ready."""

from __future__ import annotations

from dray.checks import seconds
from dray.compat.attributes import AbsentMember
from dray.compat.ids import Id
from dray.engines.object_ref import ObjectRef
from dray.engines.runtime import Group


class PlacementGroup:
    """Bundles of resources that are, or will be, set aside together.

    Example:
        >>> import dray
        >>> from dray.util import placement_group, remove_placement_group
        >>> group = placement_group([{"CPU": 1}, {"CPU": 1}])
        >>> group.wait()
        True
        >>> group.bundle_count
        2
        >>> remove_placement_group(group)
    """

    empty = AbsentMember()

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def id(self) -> Id:
        """Its id."""
        return Id(self._group.group_id)

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """Its bundles, each name to quantity."""
        return [dict(bundle) for bundle in self._group.bundles]

    @property
    def bundle_count(self) -> int:
        """The number of its bundles."""
        return len(self._group.bundles)

    @property
    def is_empty(self) -> bool:
        """True for a group without bundles; none is made here."""
        return not self._group.bundles

    def ready(self) -> ObjectRef:
        """Return a reference to this group, which is ready when all bundles are set aside."""
        return self._group.ready()

    def wait(self, timeout_seconds: float | None = 30) -> bool:
        """Wait until all bundles are set aside; return whether they are."""
        return self._group.wait(seconds(timeout_seconds))

    def __reduce__(self) -> tuple[object, ...]:
        return (PlacementGroup, (self._group,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id})"
