"""Collectives of small Python data among the workers of a run, on any framework."""

from __future__ import annotations

from typing import TypeVar

from dray.answers import answer_for
from dray.train.context import current_session

__all__ = ["barrier", "broadcast_from_rank_zero"]

T = TypeVar("T")


def barrier() -> None:
    """Return when all ranks have called it.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     if dray.train.get_context().get_local_rank() == 0:
        ...         download()
        ...     dray.train.collective.barrier()
    """
    current_session("barrier").join("barrier")


def broadcast_from_rank_zero(data: T) -> T:
    """Return rank 0's data on every rank; all ranks must call it.

    Args:
        data: Anything that pickles. For tensors, use `torch.distributed`.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     seed = dray.train.collective.broadcast_from_rank_zero(random.random())
    """
    session = current_session("broadcast_from_rank_zero")
    mine = data if session.assignment.rank == 0 else None
    result: T = session.join("broadcast_from_rank_zero", mine)
    return result


answer_for(__name__)
