"""Collectives of small Python data among the workers of a run, on any framework."""

from __future__ import annotations

from typing import TypeVar

from dray.compat.attributes import attach_getattr
from dray.train.worker.current_session import current_session

__all__ = ["barrier", "broadcast_from_rank_zero"]

T = TypeVar("T")


def barrier() -> None:
    """Return when all ranks have called it.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import DataParallelTrainer, ScalingConfig, collective, get_context
        >>> def train_loop():
        ...     if get_context().get_local_rank() == 0:
        ...         pass  # download the data, once a node
        ...     collective.barrier()
        >>> scaling = ScalingConfig(num_workers=2)
        >>> result = DataParallelTrainer(train_loop, scaling_config=scaling).fit()
    """
    current_session("barrier").join("barrier")


def broadcast_from_rank_zero(data: T) -> T:
    """Return rank 0's data on every rank; all ranks must call it.

    Args:
        data: Anything that pickles. For tensors, use `torch.distributed`.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> import dray.train
        >>> from dray.train import DataParallelTrainer, ScalingConfig, report
        >>> def train_loop():
        ...     rank = dray.train.get_context().get_world_rank()
        ...     chosen = dray.train.collective.broadcast_from_rank_zero(f"by rank {rank}")
        ...     report({"chosen": chosen})
        >>> scaling = ScalingConfig(num_workers=2)
        >>> DataParallelTrainer(train_loop, scaling_config=scaling).fit().metrics
        {'chosen': 'by rank 0'}
    """
    session = current_session("broadcast_from_rank_zero")
    mine = (data,) if session.assignment.rank == 0 else ()
    (result,) = session.join("broadcast_from_rank_zero", *mine)
    told: T = result
    return told


attach_getattr(__name__)
