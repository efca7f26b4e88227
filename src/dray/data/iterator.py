"""The iterator over a dataset, or over one rank's share of it, which records its position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from dray.compat.arguments import checked_arguments
from dray.compat.attributes import with_absent_members
from dray.data.ahead import read_ahead
from dray.data.collate_fn import ArrowBatchCollateFn as ArrowBatchCollateFn
from dray.data.collate_fn import CollateFn as CollateFn
from dray.data.collate_fn import NumpyBatchCollateFn as NumpyBatchCollateFn
from dray.data.collate_fn import PandasBatchCollateFn as PandasBatchCollateFn
from dray.data.collate_fn import format_for
from dray.data.context import DataContext
from dray.data.execution_options import ExecutionOptions
from dray.data.forms.batches import Run
from dray.data.forms.blocks import Batch, Block, Row, check_format, table_rows, to_batch
from dray.data.forms.torch_pairs import FeatureColumns
from dray.data.numbering.position import Bookmark, Position
from dray.data.pipeline import Pipeline, written_down
from dray.data.shares import Batching, Sharing, share_of
from dray.errors import ConfigError

T = TypeVar("T")

# Turns a run of batches into the values that the program receives.
Make = Callable[[Run], Iterable[Any]]


class Epochs(Generic[T]):
    """An iterable of epochs: each iteration is one epoch, as framework loops expect of a loader."""

    def __init__(self, begin: Callable[[], Iterator[T]], bookmark: Bookmark) -> None:
        self._begin, self._bookmark, self._late = begin, bookmark, False

    def __iter__(self) -> Iterator[T]:
        epoch = self._begin()
        self._bookmark.late = self._late
        return epoch

    @property
    def resumes(self) -> bool:
        """Return whether the first iteration continues from a checkpoint."""
        return self._bookmark.resumes

    def hold_back(self) -> None:
        """Count a batch only when the next one is read, for a reader that is one batch ahead."""
        self._late = True


@with_absent_members
class DataIterator:
    """An iterator over a dataset, or over one rank's share of it.

    Each iteration is a new epoch. If the iterator has positions, its first iteration continues from
    them.

    Args:
        dataset: The dataset.
        rank: The rank that reads this share.
        ranks: The number of shares.
        equal: Whether all shares have equally many rows; fewer than `ranks` rows are then left
            over.
        in_order: Whether a single rank reads files one after another instead of in lanes.
        positions: The position of each rank at the checkpoint; their number may differ from
            `ranks`.
        device: Returns the default device of tensors; None is the CPU.
        execution_options: Options of Ray's executor that the program has set for this dataset.

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
        in_order: bool = False,
        positions: list[Position] | None = None,
        device: Callable[[], Any] = lambda: None,
        execution_options: ExecutionOptions | None = None,
    ) -> None:
        self._dataset, self._execution_options = dataset, execution_options
        self._sharing = Sharing(rank, ranks, equal, in_order)
        self._bookmark = Bookmark(positions or (), dataset.num_rows)
        self._device = device
        self._waited_s = self._used_s = 0.0
        self._batches = 0

    def __repr__(self) -> str:
        share = self._sharing
        of = f", rank={share.rank}, ranks={share.ranks}" if share.ranks > 1 else ""
        return f"DataIterator({self._dataset!r}{of})"

    @property
    def position(self) -> Position:
        """The epoch, and the part of it that the program has received."""
        return self._bookmark.position

    def get_context(self) -> DataContext:
        """Return a copy of the options of Ray Data that apply to this dataset."""
        context = DataContext.get_current().copy()
        if self._execution_options is not None:
            context.execution_options = self._execution_options
        return context

    # Iterations.

    def iter_rows(self) -> Iterable[Row]:
        """Return the rows as dicts."""
        return self._epochs(self._rows)

    def _rows(self) -> Iterator[Row]:
        blocks = self._blocks(self._bookmark.begin(), Batching(None))
        for block in read_ahead(blocks, 1, self._wait):
            begun = time.perf_counter()
            for row in table_rows(block.table):
                self._bookmark.take(1)
                yield row
            self._used_s += time.perf_counter() - begun
        self._bookmark.end()

    def placed(self, device: Callable[[], Any]) -> DataIterator:
        """Return this iterator after making a function's result the default device of tensors."""
        self._device = device
        return self

    def iter_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        batch_format: str | None = "default",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
    ) -> Iterable[Any]:
        """Return an iterable of batches; each iteration over it is an epoch.

        Args:
            prefetch_batches: Number of batches that a thread makes ahead.
            batch_size: Number of rows of a batch; None yields blocks as they come.
            batch_format: "numpy" (a dict of arrays, also "default"), "pandas" or "pyarrow" (also
                None).
            drop_last: Whether to drop the last batch if it has fewer rows.
            local_shuffle_buffer_size: Number of consecutive rows, of all ranks together, to shuffle
                among themselves. The order therefore does not depend on the number of ranks.
            local_shuffle_seed: The seed of that order; the number of the epoch changes it too.
            collate_fn: A function that turns each batch into the value that is returned.

        Raises:
            ConfigError: An argument is invalid.
        """
        batching = Batching(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        chosen = format_for(collate_fn, check_format(batch_format))

        def make(run: Run) -> Iterable[Any]:
            batches = run.batches(chosen)
            return batches if collate_fn is None else map(collate_fn, batches)

        return self._epochs(lambda: self._made(make, batching))

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterable[Any]:
        """Return an iterable of tensor batches: dicts by column, or the results of `collate_fn`.

        Each iteration over it is an epoch, so it serves as a loader.

        Args:
            prefetch_batches: Number of batches that a thread makes ahead.
            batch_size: Number of rows of a batch; None yields blocks as they come.
            dtypes: The type of all tensors, or a dict of column -> type.
            device: The device of the tensors; "auto" is the device of the training worker.
            collate_fn: A function that makes tensors from a dict of NumPy arrays, or from the batch
                format of its class (see `dray.data.collate_fn`).
            drop_last: Whether to drop the last batch if it has fewer rows.
            local_shuffle_buffer_size: As for `iter_batches`.
            local_shuffle_seed: As for `iter_batches`.
            pin_memory: Whether to copy tensors to pinned memory before they go to the device.

        Raises:
            ConfigError: An argument is invalid, or `collate_fn` and `dtypes` are both given.
        """
        from dray.data.forms.tensors import Placement, tensor_batches

        if collate_fn is not None and dtypes is not None:
            raise ConfigError(
                "dtypes= cannot be combined with collate_fn=, which makes the tensors itself"
            )
        batching = Batching(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        where = self._device() if isinstance(device, str) and device == "auto" else device
        placement = Placement(where, pin=pin_memory)

        def make(run: Run) -> Iterable[Any]:
            if collate_fn is None:
                return map(placement.prepared, tensor_batches(run, dtypes))
            batches = run.batches(format_for(collate_fn))
            return (placement.prepared(collate_fn(batch)) for batch in batches)

        return self._epochs(lambda: map(placement.moved, self._made(make, batching)))

    @checked_arguments("DataIterator.iter_jax_batches")
    def iter_jax_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        synchronize_batches: bool = False,
        paddings: Any = None,
    ) -> Iterable[Any]:
        """Return an iterable of batches of JAX arrays, each with the rows of all processes.

        The rows of a process are on its own devices. All processes have equally many batches, with
        equally many rows. Without `paddings`, fewer rows than there are processes are left over.

        Args:
            prefetch_batches: Number of batches that a thread makes ahead.
            batch_size: Number of rows that each process adds to a batch; its devices share them
                evenly.
            dtypes: The type of all arrays, or a dict of column -> type.
            collate_fn: A function that makes an array, or a dict of arrays, from a dict of NumPy
                arrays or from the batch format of its class (see `dray.data.collate_fn`).
            drop_last: Whether to drop the last batch if it has fewer rows.
            local_shuffle_buffer_size: As for `iter_batches`.
            local_shuffle_seed: As for `iter_batches`.
            synchronize_batches: Whether to check that `collate_fn` returns equally many rows on all
                processes, at the cost of one message per batch.
            paddings: A value, or a dict of column -> value, that fills the last batch up to
                `batch_size` rows, so that JAX compiles a step only once.

        Raises:
            ConfigError: `batch_size` is missing, or the devices of a process cannot share a batch
                evenly.
        """
        from dray.data.forms.jax_arrays import ToJax, check_alike, check_rows

        batching = Batching(
            batch_size, prefetch_batches, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        if batch_size is None:  # the other iterators accept None
            raise ConfigError("batch_size must be a number of rows here: devices share a batch")
        check_rows(batch_size, f"batch_size={batch_size}", "ask for more rows, or fewer")
        to_jax = ToJax(dtypes, collate_fn, None if paddings is None else batch_size, paddings)

        def make(run: Run) -> Iterable[Any]:
            return map(to_jax, run.batches(format_for(collate_fn)))

        if not synchronize_batches:
            return self._epochs(lambda: self._made(make, batching))
        return self._epochs(lambda: map(check_alike, self._made(make, batching)))

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: FeatureColumns = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
        **options: Any,
    ) -> Any:
        """Return a torch IterableDataset of batches, each a pair (features, label).

        Args:
            label_column: The column of the label; if None, the label is None.
            feature_columns: The columns to join to one tensor of `batch_size` rows; a list of
                lists, or a dict of lists, makes several tensors. None selects all columns except
                the label.
            label_column_dtype: The type of the label.
            feature_column_dtypes: The type of the features, or a list or dict of types like that of
                the columns.
            batch_size: Number of rows of a batch.
            unsqueeze_label_tensor: Whether a label with one number per row has the shape (rows, 1).
            unsqueeze_feature_tensors: Whether features with one number per row have that shape.
            options: `drop_last`, `prefetch_batches`, `local_shuffle_buffer_size` and
                `local_shuffle_seed`, as for `iter_batches`.
        """
        from dray.data.forms.torch_pairs import Pairs, as_iterable_dataset

        pair = Pairs(
            label_column,
            feature_columns,
            label_column_dtype,
            feature_column_dtypes,
            unsqueeze_label_tensor,
            unsqueeze_feature_tensors,
        )
        batches = self.iter_batches(batch_size=batch_size, batch_format="numpy", **options)
        return as_iterable_dataset(self._epochs(lambda: map(pair, batches)))

    def iter_tf_batches(self, *, dtypes: Any = None, **options: Any) -> Iterable[Row]:
        """Return an iterable of batches of TensorFlow tensors, by column.

        Args:
            dtypes: The type of all tensors, or a dict of column -> type.
            options: As for `iter_batches`, except `batch_format`.
        """
        from dray.data.forms.tensorflow_sets import to_tf_tensors

        batches = self.iter_batches(batch_format="numpy", **options)
        return self._epochs(lambda: (to_tf_tensors(batch, dtypes) for batch in batches))

    def to_tf(
        self,
        feature_columns: str | list[str],
        label_columns: str | list[str],
        *,
        additional_columns: str | list[str] | None = None,
        batch_size: int = 1,
        feature_type_spec: Any = None,
        label_type_spec: Any = None,
        additional_type_spec: Any = None,
        **options: Any,
    ) -> Any:
        """Return a `tf.data.Dataset` of batches, each a pair (features, labels).

        Each iteration over it is an epoch. TensorFlow does not divide it among workers a second
        time.

        Args:
            feature_columns: A column for a tensor, or a list of columns for a dict of tensors.
            label_columns: The same for the labels.
            additional_columns: The same for more values, such as sample weights; batches are then
                triples.
            batch_size: Number of rows of a batch.
            feature_type_spec: A `tf.TensorSpec`, or a dict of them; default: the type of the data.
            label_type_spec: The same for the labels.
            additional_type_spec: The same for the additional columns.
            options: As for `iter_batches`, except `batch_format`.
        """
        from dray.data.forms.tensorflow_sets import as_tf_dataset, columns_of

        blocks = self._blocks(Position(self.position.epoch), Batching(None))
        example: Batch = next((to_batch(block.table, "numpy") for block in blocks), {})
        columns = (feature_columns, label_columns, additional_columns)
        wanted = tuple(each for each in columns if each is not None)
        batches = self.iter_batches(batch_size=batch_size, batch_format="numpy", **options)
        return as_tf_dataset(
            lambda: (columns_of(batch, wanted) for batch in batches),
            columns_of(example, wanted),
            (feature_type_spec, label_type_spec, additional_type_spec),
        )

    # The rest.

    def materialize(self) -> Any:
        """Return the rows of one iteration as a dataset in memory, or in a file if it is large.

        This does not count as an iteration: the position does not change.
        """
        blocks = self._blocks(Position(self.position.epoch), Batching(None))
        rows = written_down(blocks, "the share", self._dataset.arrow_schema)
        return type(self._dataset)(rows)

    def schema(self) -> Any:
        """Return the names and types of the columns."""
        return self._dataset.schema()

    def stats(self) -> str:
        """Return the number of batches, and the time for which the program waited for them."""
        epoch, taken = self.position.epoch, self.position.taken
        return (
            f"epoch {epoch}, {taken} rows of it; {self._batches} batches in all, waited for "
            f"{self._waited_s:.3f} s of {self._used_s + self._waited_s:.3f} s"
        )

    @property
    def waited_s(self) -> float:
        """Seconds for which the program has waited for batches."""
        return self._waited_s

    # Production of rows.

    def _epochs(self, begin: Callable[[], Iterator[T]]) -> Epochs[T]:
        return Epochs(begin, self._bookmark)

    def _blocks(self, position: Position, batching: Batching) -> Iterator[Block]:
        for run in self._runs(position, batching):
            yield from run.blocks()

    def _runs(self, position: Position, batching: Batching) -> Iterator[Run]:
        return share_of(self._dataset, self._sharing, batching).runs(position, batching)

    def _made(self, make: Make, batching: Batching) -> Iterator[Any]:
        runs = self._runs(self._bookmark.begin(), batching)
        made = (list(zip(make(run), run.sizes, strict=True)) for run in runs)
        for batches in read_ahead(made, batching.ahead, self._wait):
            begun = time.perf_counter()
            for batch, rows in batches:
                self._bookmark.take(rows)
                self._batches += 1
                yield batch
            self._used_s += time.perf_counter() - begun
        self._bookmark.end()

    def _wait(self, seconds: float) -> None:
        self._waited_s += seconds


DatasetIterator = DataIterator  # the former name in Ray
