"""The iterator over a dataset, or over one rank's share of it, that knows its position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dray.checks import is_whole, plain
from dray.data.ahead import read_ahead
from dray.data.blocks import (
    Batch,
    Block,
    Row,
    check_format,
    rebatched,
    table_rows,
    to_batch,
)
from dray.data.pipeline import Pipeline
from dray.data.position import Position, batch_sizes, resumed, share
from dray.data.reading import read_numbers
from dray.data.staging import stage
from dray.errors import ConfigError

# Converts a block's table into what the program gets.
Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Batching:
    """The choices of an iteration over batches.

    Attributes:
        size: Rows of a batch; None leaves blocks as they are.
        ahead: Number of batches that are made ahead.
        drop_last: Whether to leave out a last one that has fewer rows.
        window: Number of rows that follow each other, in a random order.
        seed: Decides that order.

    Raises:
        ConfigError: One is malformed.
    """

    size: int | None = 256
    ahead: int = 1
    drop_last: bool = False
    window: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        rows = {"batch_size": self.size, "local_shuffle_buffer_size": self.window}
        for name, value in rows.items():
            if value is not None and not is_whole(plain(value), 1):
                raise ConfigError(f"{name} must be a number of rows, 1 or more, not {value!r}")
        if not is_whole(plain(self.ahead), 0):
            raise ConfigError(f"prefetch_batches must be 0 or more, not {self.ahead!r}")


class DataIterator:
    """Iterates over a dataset, or over one rank's share of it.

    Each iteration that is begun is an epoch of its own. The first one of an iterator that was made
    with positions goes on where they were.

    Args:
        dataset: The rows; they can be counted.
        rank: The rank whose share it is.
        ranks: The number of shares.
        equal: Whether all shares make as many batches; if rows are asked for, whether all have as
            many, so that fewer than `ranks` are left over.
        positions: The place of each rank when they stopped, however many there were.
        device: Returns where tensors go if nobody says so; None is the CPU.

    Example:
        >>> import dray.data
        >>> for batch in dray.data.range(4).iterator().iter_batches(batch_size=3):
        ...     print(batch["id"])
        [0 1 2]
        [3]
    """

    def __init__(
        self,
        dataset: Pipeline,
        rank: int = 0,
        ranks: int = 1,
        *,
        equal: bool = False,
        positions: list[Position] | None = None,
        device: Callable[[], Any] = lambda: None,
    ) -> None:
        self._dataset = dataset
        self._rank, self._ranks, self._equal = rank, ranks, equal
        self._position = Position() if not positions else resumed(positions)
        self._begun = False
        self._device = device
        self._waited_s = self._used_s = 0.0
        self._batches = 0

    @property
    def position(self) -> Position:
        """The epoch, and how much of it the program has been given."""
        return self._position

    # Iterations.

    def iter_rows(self) -> Iterator[Row]:
        """Yield rows as dicts."""
        position = self._begin()
        blocks = self._read(position, self._rows_left(position), Batching())
        for block in read_ahead(blocks, 1, self._wait):
            for row in table_rows(block.table):
                self._took(1)
                yield row
        self._ended()

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        collate_fn: Callable[[Batch], Any] | None = None,
    ) -> Iterator[Any]:
        """Yield batches.

        Args:
            prefetch_batches: Number of batches that a thread makes ahead.
            batch_size: Rows of a batch; None for blocks as they come.
            batch_format: "numpy" (a dict of arrays, also "default"), "pandas" or "pyarrow".
            drop_last: Whether to leave out a last batch that has fewer rows.
            local_shuffle_buffer_size: Number of rows, of all ranks together, that are in a random
                order within it; so that does not depend on the number of ranks.
            local_shuffle_seed: Decides that order, together with the epoch.
            collate_fn: Makes of each batch what is yielded.

        Raises:
            ConfigError: An argument is malformed.
        """
        batching = Batching(
            batch_size,
            prefetch_batches,
            drop_last,
            local_shuffle_buffer_size,
            local_shuffle_seed,
        )
        chosen = check_format(batch_format)

        def convert(table: Any) -> Any:
            batch = to_batch(table, chosen)
            return batch if collate_fn is None else collate_fn(batch)

        return self._converted(convert, batching)

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[Batch], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterator[Any]:
        """Yield batches of tensors: a dict by column, or what `collate_fn` makes.

        Args:
            prefetch_batches: Number of batches that a thread makes ahead.
            batch_size: Rows of a batch; None for blocks as they come.
            dtypes: The type of all tensors, or column -> type.
            device: Their device; "auto" is that of the train worker.
            collate_fn: Makes tensors of a dict of NumPy arrays.
            drop_last: Whether to leave out a last batch that has fewer rows.
            local_shuffle_buffer_size: As for `iter_batches`.
            local_shuffle_seed: As for `iter_batches`.
            pin_memory: Whether tensors are put into pinned memory before.
        """
        from dray.data.tensors import Placement, to_tensors

        batching = Batching(
            batch_size,
            prefetch_batches,
            drop_last,
            local_shuffle_buffer_size,
            local_shuffle_seed,
        )
        where = self._device() if isinstance(device, str) and device == "auto" else device
        placement = Placement(where, pin=pin_memory)

        def convert(table: Any) -> Any:
            batch = to_batch(table, "numpy")
            made = to_tensors(batch, dtypes) if collate_fn is None else collate_fn(batch)
            return placement.prepared(made)

        batches = self._converted(convert, batching)
        return map(placement.moved, batches)

    def iter_jax_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield batches of arrays of JAX, on its first local device.

        Args:
            prefetch_batches: Number of batches that a thread makes ahead.
            batch_size: Rows of a batch; None for blocks as they come.
            dtypes: The type of all arrays, or column -> type.
            drop_last: Whether to leave out a last batch that has fewer rows.
            local_shuffle_buffer_size: As for `iter_batches`.
            local_shuffle_seed: As for `iter_batches`.
        """
        import jax.numpy as jnp

        batching = Batching(
            batch_size,
            prefetch_batches,
            drop_last,
            local_shuffle_buffer_size,
            local_shuffle_seed,
        )

        def convert(table: Any) -> dict[str, Any]:
            batch = to_batch(table, "numpy")
            kinds = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(batch, dtypes)
            return {name: jnp.asarray(array, kinds.get(name)) for name, array in batch.items()}

        return self._converted(convert, batching)

    def to_torch(self, **options: Any) -> Any:
        """Return a torch IterableDataset of the batches that `iter_torch_batches` yields.

        Args:
            options: As for `iter_torch_batches`.
        """
        from dray.data.tensors import as_iterable_dataset

        return as_iterable_dataset(lambda: self.iter_torch_batches(**options))

    # The rest.

    def materialize(self) -> Any:
        """Return the rows of one iteration as a dataset that is in memory, or in a file if large.

        It counts as no iteration: the position stays.
        """
        epoch = Position(self._position.epoch)
        blocks = self._read(epoch, self._rows_left(epoch), Batching())
        return type(self._dataset)(stage(blocks, "the share", self._dataset.arrow_schema()))

    def schema(self) -> Any:
        """Return the names and types of the columns."""
        return self._dataset.schema()

    def stats(self) -> str:
        """Return how many batches there were, and how long the program waited for them."""
        epoch, taken = self._position.epoch, self._position.taken
        return (
            f"epoch {epoch}, {taken} rows of it; {self._batches} batches in all, waited for "
            f"{self._waited_s:.3f} s of {self._used_s + self._waited_s:.3f} s"
        )

    @property
    def waited_s(self) -> float:
        """Seconds that the program has waited for batches so far."""
        return self._waited_s

    # How rows come.

    def _converted(self, convert: Convert, batching: Batching) -> Iterator[Any]:
        position = self._begin()
        if batching.size is None:
            blocks = self._read(position, self._rows_left(position), batching)
        else:
            sizes = batch_sizes(
                self._left(position),
                self._rank,
                self._ranks,
                batching.size,
                equal=self._equal,
                drop_last=batching.drop_last,
            )
            blocks = rebatched(self._read(position, sum(sizes), batching), sizes)
        made = ((convert(block.table), block.table.num_rows) for block in blocks)
        begun = time.perf_counter()
        for batch, rows in read_ahead(made, batching.ahead, self._wait):
            self._took(rows)
            self._batches += 1
            yield batch
        self._used_s += time.perf_counter() - begun
        self._ended()

    def _wait(self, seconds: float) -> None:
        self._waited_s += seconds

    def _begin(self) -> Position:
        """Begin an epoch, or go on with the one that was interrupted; return where."""
        if self._begun:  # an earlier iteration was left before its end
            self._ended()
        self._begun = True
        return self._position

    def _took(self, rows: int) -> None:
        last = self._position
        rows_of_all = self._dataset.num_rows
        self._position = Position(last.epoch, last.taken + rows, last.seen, rows_of_all)

    def _ended(self) -> None:
        self._begun = False
        self._position = Position(self._position.epoch + 1, rows=self._dataset.num_rows)

    def _left(self, position: Position) -> int:
        """Return how many rows of an epoch all ranks together have not seen."""
        rows = self._dataset.num_rows
        assert rows is not None
        return rows - position.seen.count()

    def _rows_left(self, position: Position) -> int:
        return share(self._left(position), self._rank, self._ranks, equal=self._equal)

    def _read(self, position: Position, rows: int, batching: Batching) -> Iterator[Block]:
        """Yield the next rows of this rank's share of an epoch."""
        dataset = self._dataset
        order = dataset.order(position.epoch, batching.window or 0, batching.seed or 0)
        return dataset.apply(read_numbers(dataset.source, order, self._chunks(position, rows)))

    def _chunks(self, position: Position, rows: int) -> Iterator[Any]:
        """Yield the numbers of this rank's next rows, a block at a time."""
        step = self._dataset.source.block_rows()
        for begin in range(0, rows, step):
            places = np.arange(begin, min(begin + step, rows))
            yield position.seen.number(places * self._ranks + self._rank)
