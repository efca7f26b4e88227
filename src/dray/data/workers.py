"""Operations in workers: users' functions that run in so many actors."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dray.checks import is_whole, plain
from dray.compat.arguments import check_arguments, checked_arguments
from dray.core.objects import get
from dray.core.remote import remote
from dray.data.forms.batches import rebatched
from dray.data.forms.blocks import Block, taken
from dray.data.operations import FunctionOperation, MapBatches, Operation, UserFunction
from dray.engines.object_ref import ObjectRef
from dray.errors import ConfigError

_OF_ACTORS = (
    *("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "label_selector"),
    *("scheduling_strategy", "runtime_env", "max_restarts", "max_task_retries"),
)
OPTIONS = ("concurrency", "compute", "udf_modifying_row_count", *_OF_ACTORS)
# Blocks that a worker has, beside the one that it is at.
_WAITING = 1


@checked_arguments("ActorPoolStrategy")
@dataclass(frozen=True)
class ActorPoolStrategy:
    """A number of workers, as Ray Data has it: `compute=ActorPoolStrategy(size=4)`.

    Args:
        size: The number.
        min_size: The least, if there is no number.
        max_size: The most, and that many are taken.
        initial_size: Nothing; Ray's.
        max_tasks_in_flight_per_actor: Nothing; Ray's.

    Example:
        >>> import dray.data
        >>> dray.data.ActorPoolStrategy(size=4).number
        4
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None

    @property
    def number(self) -> int:
        """The number of workers."""
        return self.size or self.max_size or self.min_size or 1


@dataclass(frozen=True)
class TaskPoolStrategy:
    """A number of workers, as Ray Data has it: `compute=TaskPoolStrategy(size=4)`.

    Args:
        size: The number; None leaves the work to the process that reads.
    """

    size: int | None = None

    @property
    def number(self) -> int | None:
        """The number of workers."""
        return self.size


def check_options(callee: str, options: Mapping[str, object]) -> None:
    """Refuse options of workers that there are none of.

    Raises:
        AbsentArgumentError: One is unknown.
    """
    check_arguments(callee, {k: v for k, v in options.items() if k not in OPTIONS}, OPTIONS)


def in_workers(operation: FunctionOperation, options: Mapping[str, object]) -> Operation:
    """Return an operation that runs in workers, if that is asked for.

    Args:
        operation: The work that they do.
        options: `concurrency`, `compute`, and what each worker takes, such as `num_gpus`.

    Raises:
        ConfigError: One is malformed or unknown.
    """
    check_options("Dataset.map_batches", options)
    number = _number(options)
    if number is None:
        return operation
    takes = {name: options[name] for name in _OF_ACTORS if options.get(name) is not None}
    return InWorkers(operation, number, {"num_cpus": 0, **takes}, operation.keeps_rows)


def _number(options: Mapping[str, object]) -> int | None:
    compute, asked = options.get("compute"), options.get("concurrency")
    if isinstance(compute, ActorPoolStrategy | TaskPoolStrategy):
        asked = compute.number
    most = asked[-1] if isinstance(asked, tuple) and asked else asked
    if most is not None and not is_whole(plain(most), 1):
        raise ConfigError(
            f"concurrency must be a number of workers, or the least and the most, not {asked!r}"
        )
    return None if most is None else int(plain(most))


@dataclass(frozen=True)
class InWorkers(Operation):
    """Another operation, done block by block in actors; blocks keep their order.

    Attributes:
        operation: The other one.
        number: The number of actors.
        takes: Resources of each; none unless they are asked for, since a training may have all.
        keeps_rows: As the other one.
    """

    operation: FunctionOperation
    number: int
    takes: Mapping[str, object]
    keeps_rows: bool | None = None

    def apply(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield what becomes of blocks."""
        operation = self.operation
        if isinstance(operation, MapBatches) and operation.batch_size is not None:
            blocks = rebatched(blocks, itertools.repeat(operation.batch_size))
            operation = dataclasses.replace(operation, batch_size=None)
        kind = remote(**self.takes)(_Worker)
        actors = itertools.cycle([kind.remote(operation) for _ in range(self.number)])
        pending: deque[ObjectRef] = deque()
        for block in blocks:
            pending.append(next(actors).apply.remote(_alone(block)))
            if len(pending) > self.number * (1 + _WAITING):
                yield from get(pending.popleft())
        while pending:
            yield from get(pending.popleft())


def _alone(block: Block) -> Block:
    """Return a block without rows beside it: a slice is pickled with all of its table."""
    table = block.table
    if table.get_total_buffer_size() <= 2 * table.nbytes:
        return block
    return block._replace(table=taken(table, np.arange(table.num_rows)))


class _Worker:
    """An actor that applies an operation; a class of the user has one instance here."""

    def __init__(self, operation: FunctionOperation) -> None:
        function = operation.function
        made = UserFunction(function.made(), function.method, called=function.name)
        self._operation = dataclasses.replace(operation, function=made)

    def apply(self, block: Block) -> list[Block]:
        """Return what becomes of a block."""
        return [made._replace(own=False) for made in self._operation.apply([block])]
