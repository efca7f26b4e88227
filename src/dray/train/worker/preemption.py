"""Preemption: the nodes that are about to be taken away, as the train function sees them."""

from __future__ import annotations

from typing import Any

from dray.errors.preemption import PreemptionInfo
from dray.train.worker.current_session import current_session

# Name of the collective, whose result is the controller's.
COLLECTIVE = "get_preemption_info"


def get_preemption_info() -> PreemptionInfo | None:
    """Return which nodes of this run are about to be taken away; None if no one is.

    A cloud says so some seconds or minutes before it takes a machine back, and Ray then drains the
    node. The function can report a checkpoint then, and go on: once the node is gone, or its time
    is over (two minutes, if nobody has said it), the run starts again from that checkpoint, as
    `FailureConfig(max_preemption_failures=)` allows.

    All ranks must call it equally often, since it waits for all, so that all see the same. The
    driver looks at most once a second.

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
