"""Nodes that are about to be taken away: their ranks, their time, and ranks that can continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set

from dray.errors import NodeDiedError
from dray.errors.preemption import PreemptionInfo
from dray.scheduling.requests import Node
from dray.train.config import FailureConfig
from dray.train.planning.ranks import RankAssignment
from dray.train.run.output.line_dedup import describe_ranks

# Seconds between two looks, each of which asks a cluster.
_EVERY_S = 1.0

# Seconds from its announcement to the end of a node of which nobody has said when it goes.
_UNKNOWN_S = 120.0


class Preemptions:
    """Looks at the nodes of an attempt, and tells the user what it finds.

    Args:
        nodes: Returns the nodes of the cluster.
        warn: Tells the user something.
        allowed: The times and the relaxation that the user has chosen.
    """

    def __init__(
        self,
        nodes: Callable[[], list[Node]],
        warn: Callable[[str], object],
        allowed: FailureConfig,
    ) -> None:
        self._nodes = nodes
        self._warn = warn
        self._allowed = allowed
        self._looked_at = -_EVERY_S
        self._leaving: dict[str, float | None] = {}  # when each will be gone
        self._first_at = 0.0  # when the first of them was known, in seconds since the epoch
        self._ranks: dict[str, list[int]] = {}

    def look(self, positions: Sequence[RankAssignment], every_s: float = 0.0) -> None:
        """Look at the nodes of ranks at these places, if that was not done of late."""
        now = time.monotonic()
        if now - self._looked_at < every_s:
            return
        self._looked_at = now
        own = {position.place.node.node_id for position in positions}
        for node in self._nodes():
            if not node.leaves or node.node_id not in own:
                continue
            if node.node_id not in self._leaving:
                self._first_at = self._first_at or time.time()
                at = node.leaves_at
                left = "" if at is None else f" in {max(0.0, at - time.time()):.0f} s"
                ranks = self._ranks[node.node_id] = _ending_with(node.node_id, positions)
                told = f"node {node.title} is to be taken away{left}"
                self._warn(f"{told}, and {describe_ranks(ranks)} with it")
            self._leaving[node.node_id] = node.leaves_at

    def told(self, positions: Sequence[RankAssignment]) -> PreemptionInfo | None:
        """Return what ranks at these places are told as they ask."""
        self.look(positions, _EVERY_S)
        return self.info

    @property
    def info(self) -> PreemptionInfo | None:
        """The nodes that are known to go; None if there are none."""
        if not self._leaving:
            return None
        at = self._first_end()
        return PreemptionInfo(None if at is None else round(at * 1000), dict(self._ranks))

    def _first_end(self) -> float | None:
        return min((at for at in self._leaving.values() if at is not None), default=None)

    @property
    def left_s(self) -> float:
        """Seconds until the run leaves the nodes, their grace included; they are known."""
        at = self._first_end()
        end = self._first_at + _UNKNOWN_S if at is None else at
        left_s = end + self._allowed.preemption_grace_s - time.time()
        return min(max(0.0, left_s), threading.TIMEOUT_MAX)

    def left_out(self, failures: Mapping[int, BaseException]) -> set[int]:
        """Return the failed ranks without which reports are complete."""
        relaxes = self._allowed.relax_collectives_on_preemption
        info = self.info if relaxes else None
        # What rank 0 reports is the run's; without it there is nothing to go on with.
        return set() if info is None or 0 in info.preempted_ranks else self._taken(failures)

    def spare(self, failures: Mapping[int, BaseException]) -> bool:
        """Return whether the other ranks go on, as the failed ones were taken away with nodes."""
        allowed = self._allowed
        waits = allowed.relax_collectives_on_preemption or allowed.preemption_grace_s > 0
        return waits and bool(failures) and len(self._taken(failures)) == len(failures)

    def were_cause(self, failures: Mapping[int, BaseException]) -> bool:
        """Return whether an announced node took one of the failed ranks."""
        return bool(self._taken(failures))

    def _taken(self, failures: Mapping[int, BaseException]) -> set[int]:
        ranks = {rank for ranks in self._ranks.values() for rank in ranks}
        return {rank for rank in ranks if isinstance(failures.get(rank), NodeDiedError)}

    def overdue(self, running: Set[int]) -> dict[int, NodeDiedError]:
        """Return rank -> its error, of those at work on nodes that were to be gone by now."""
        nodes = [(rank, node_id) for node_id, ranks in self._ranks.items() for rank in ranks]
        return {
            rank: NodeDiedError(
                None, details=f"the run leaves its node {node_id}, whose announced time is over"
            )
            for rank, node_id in nodes
            if rank in running
        }


def _ending_with(node_id: str, positions: Sequence[RankAssignment]) -> list[int]:
    slices = {p.place.slice_name for p in positions if p.place.node.node_id == node_id} - {""}
    return [
        position.rank
        for position in positions
        if position.place.node.node_id == node_id or position.place.slice_name in slices
    ]
