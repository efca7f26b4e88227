"""Operations in workers: users' functions that run in a given number of actors."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dray.checks import is_whole, plain
from dray.compat.arguments import check_arguments, checked_arguments, parameter_names
from dray.data.forms.batches import rebatched
from dray.data.forms.blocks import Block, taken
from dray.data.operations import FunctionOperation, MapBatches, Operation
from dray.data.pools.pool import Pool
from dray.errors import ConfigError

_OF_ACTORS = (
    *("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector"),
    *("scheduling_strategy", "runtime_env", "max_restarts", "max_task_retries"),
)
OPTIONS = ("concurrency", "compute", "udf_modifying_row_count", "max_calls", *_OF_ACTORS)


@checked_arguments("ActorPoolStrategy")
@dataclass(frozen=True)
class ActorPoolStrategy:
    """A number of workers, as in Ray Data: `compute=ActorPoolStrategy(size=4)`.

    Args:
        size: The number of workers.
        min_size: The minimum, if `size` is not given; the work begins with this number.
        max_size: The maximum, which is used if resources are free.
        initial_size: Ignored; for compatibility with Ray.
        max_tasks_in_flight_per_actor: Ignored; for compatibility with Ray.

    Example:
        >>> import dray.data
        >>> dray.data.ActorPoolStrategy(min_size=1, max_size=4).max_size
        4
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None


@dataclass(frozen=True)
class TaskPoolStrategy:
    """A number of workers, as in Ray Data: `compute=TaskPoolStrategy(size=4)`.

    Args:
        size: The number of workers; None runs the work in the process that reads.
    """

    size: int | None = None


def check_options(method: Callable[..., object], options: Mapping[str, object]) -> None:
    """Raise an error for unknown options of workers.

    Raises:
        AbsentArgumentError: An option is unknown.
    """
    unknown = {name: value for name, value in options.items() if name not in OPTIONS}
    if unknown:
        check_arguments(method.__qualname__, unknown, (*parameter_names(method), *OPTIONS))


def in_workers(
    method: Callable[..., object], operation: FunctionOperation, options: Mapping[str, object]
) -> Operation:
    """Return the operation, or one that runs it in workers if the options request this.

    Args:
        options: `concurrency`, `compute`, and the resources of each worker, such as `num_gpus`. By
            default, an async function runs in one worker.

    Raises:
        ConfigError: An option is invalid or unknown.
    """
    check_options(method, options)
    numbers = _numbers(options)
    if numbers is None and _is_async(operation.function.function):
        numbers = (1, 1)
    if numbers is None:
        return operation
    takes = {name: options[name] for name in _OF_ACTORS if options.get(name) is not None}
    return InWorkers(operation, *numbers, {"num_cpus": 0, **takes}, operation.keeps_rows)


def _is_async(function: Callable[..., object]) -> bool:
    """Return whether a function, or the `__call__` of a class, is async."""
    kind = function if inspect.isclass(function) else type(function)
    calls = (function, kind.__call__)
    return any(inspect.iscoroutinefunction(c) or inspect.isasyncgenfunction(c) for c in calls)


def _given(*numbers: int | None) -> int:
    """Return the first number that is not None."""
    return next(number for number in numbers if number is not None)


def _numbers(options: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the minimum and maximum of workers; None if no workers are requested."""
    compute, asked = options.get("compute"), options.get("concurrency")
    if isinstance(compute, TaskPoolStrategy):
        asked = compute.size
    elif isinstance(compute, ActorPoolStrategy):
        least = _given(compute.size, compute.min_size, 1)
        asked = (least, _given(compute.size, compute.max_size, least))
    elif compute is not None:
        raise ConfigError(f"compute= takes ActorPoolStrategy(size=4) or the like, not {compute!r}")
    if asked is None:
        return None
    # If there are three numbers, as in Ray, the last one is the initial number; it is ignored.
    numbers = [plain(n) for n in (asked[:2] if isinstance(asked, tuple) and asked else (asked,))]
    least, most = numbers[0], numbers[-1]
    if not is_whole(least, 1) or not is_whole(most, least):
        raise ConfigError(
            f"concurrency must be a number of workers, or the least and the most, not {asked!r}"
        )
    return least, most


@dataclass(frozen=True)
class InWorkers(Operation):
    """Another operation that runs block by block in actors; blocks keep their order.

    Attributes:
        least: The initial number of actors, or fewer if resources are free only for fewer.
        takes: The resources of each actor; none unless requested, because a training may hold all.
    """

    operation: FunctionOperation
    least: int
    most: int
    takes: Mapping[str, object]
    keeps_rows: bool | None = None

    def __str__(self) -> str:
        workers = f"{self.least} to {self.most}" if self.most > self.least else f"{self.least}"
        return f"{self.operation}, in {workers} actors"

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the results for blocks, in order."""
        operation, options = self.operation, dict(self.takes)
        if isinstance(operation, MapBatches) and operation.batch_size is not None:
            blocks = rebatched(blocks, itertools.repeat(operation.batch_size))
            operation = dataclasses.replace(operation, batch_size=None)
        if "max_restarts" in options or "max_task_retries" in options:  # set the other as Ray does
            options.setdefault("max_restarts", -1)
            options.setdefault("max_task_retries", -1 if options["max_restarts"] else 0)
        yield from Pool(operation, options, self.least, self.most).results(map(_alone, blocks))


def _alone(block: Block) -> Block:
    """Return a block without other rows in its memory, because pickling a slice sends its table."""
    table = block.table
    if table.get_total_buffer_size() <= 2 * table.nbytes:
        return block
    return block._replace(table=taken(table, np.arange(table.num_rows)))
