"""Information on a preemption: the nodes that a run will lose or has lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PreemptionInfo:
    """The nodes of a run that will be taken away.

    Attributes:
        deadline_ms: Time at which the first node is taken away, in milliseconds since the epoch;
            None if it is unknown.
        preempted_node_to_ranks: Node id -> the ranks that end with the node: the ranks on it, or
            all ranks of its TPU slice.

    Example:
        >>> from dray.train import PreemptionInfo
        >>> PreemptionInfo(None, {"node-b": [2, 3]}).preempted_ranks
        [2, 3]
    """

    deadline_ms: int | None
    preempted_node_to_ranks: Mapping[str, list[int]]

    @property
    def preempted_node_ids(self) -> list[str]:
        """The ids of the nodes, sorted."""
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        """The ranks that end with the nodes, sorted."""
        return sorted({r for ranks in self.preempted_node_to_ranks.values() for r in ranks})
