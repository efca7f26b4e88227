"""Operations in workers: users' functions that run in so many tasks or actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dray.answers import check_arguments
from dray.data.operations import Operation

_KNOWN = ("concurrency", "compute", "num_cpus", "num_gpus", "memory", "resources")


def in_workers(operation: Operation, options: Mapping[str, Any]) -> Operation:
    """Return an operation that runs in workers, if that is asked for.

    Args:
        operation: The work that they do.
        options: `concurrency`, `num_cpus` and so on.

    Raises:
        ConfigError: One is malformed or unknown.
    """
    unknown = {name: value for name, value in options.items() if name not in _KNOWN}
    if unknown:
        check_arguments("Dataset.map_batches", unknown, _KNOWN)
    return operation
