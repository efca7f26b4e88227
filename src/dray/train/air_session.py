"""Functions of `ray.air.session`, the name of a rank's context in older programs for Ray."""

from __future__ import annotations

from dray.train.context import get_checkpoint, get_context, report
from dray.train.datasets import get_dataset_shard

__all__ = [
    "get_checkpoint",
    "get_dataset_shard",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_world_rank",
    "get_world_size",
    "report",
]


def get_world_rank() -> int:
    """Return the rank of this worker."""
    return get_context().get_world_rank()


def get_world_size() -> int:
    """Return the number of workers."""
    return get_context().get_world_size()


def get_local_rank() -> int:
    """Return the rank of this worker among those of its node."""
    return get_context().get_local_rank()


def get_local_world_size() -> int:
    """Return the number of workers of this node."""
    return get_context().get_local_world_size()


def get_node_rank() -> int:
    """Return the rank of this node."""
    return get_context().get_node_rank()


def get_experiment_name() -> str:
    """Return the run's name."""
    return get_context().get_experiment_name()
