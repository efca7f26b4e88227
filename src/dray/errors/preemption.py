"""Preemption, as data: the nodes that a run is about to lose, or has lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PreemptionInfo:
    """The nodes of a run that are about to be taken away.

    Attributes:
        deadline_ms: Time of the first of them, in milliseconds since the epoch; None if nobody has
            said it.
        preempted_node_to_ranks: Ids of the nodes, with the ranks that end with each: those on it,
            or those of its whole TPU slice.

    Example:
        >>> from dray.train import PreemptionInfo
        >>> PreemptionInfo(None, {"node-b": [2, 3]}).preempted_ranks
        [2, 3]
    """

    deadline_ms: int | None
    preempted_node_to_ranks: Mapping[str, list[int]]

    @property
    def preempted_node_ids(self) -> list[str]:
        """The nodes, sorted."""
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """The ranks that end with them, sorted."""
        return sorted({r for ranks in self.preempted_node_to_ranks.values() for r in ranks})
