"""Preemption: what a train function learns of nodes that are about to be taken away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dray.train.worker.current_session import current_session

# Name of the collective, whose result is the controller's.
COLLECTIVE = "get_preemption_info"


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


def get_preemption_info() -> PreemptionInfo | None:
    """Return which nodes of this run are about to be taken away; None if no one is.

    A cloud says so some seconds or minutes before it takes a machine back, and Ray then drains the
    node. The function can report a checkpoint then, and go on: once the node is gone, the run
    starts again from that checkpoint, as `FailureConfig(max_preemption_failures=)` allows.

    All ranks must call it equally often, since it waits for all, so that all see the same. The
    driver looks at most once a second, and only as it is called.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> import dray.train
        >>> from dray.train import DataParallelTrainer, ScalingConfig
        >>> def train_loop():
        ...     saved = False
        ...     for step in range(3):
        ...         leaving = dray.train.get_preemption_info()
        ...         if leaving is not None and not saved:
        ...             saved = True  # report a checkpoint, out of turn
        ...     return saved
        >>> trainer = DataParallelTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2))
        >>> trainer.fit().return_value
        False
    """
    found: list[Any] = current_session(COLLECTIVE).join(COLLECTIVE)
    info: PreemptionInfo | None = found[0]
    return info
