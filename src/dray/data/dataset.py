"""The dataset: a source of rows, and operations that run when rows are requested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import pyarrow.compute as pc

from dray.checks import is_number, is_whole, plain, seed_of
from dray.compat.attributes import with_absent_members
from dray.data import relational
from dray.data.aggregate.totals import Totals
from dray.data.columns.conditions import parsed
from dray.data.columns.projections import Columns, Condition
from dray.data.expressions import Expr, UnnestExpr
from dray.data.forms.blocks import Batch, Block, Table, check_format
from dray.data.grouped import named_columns
from dray.data.operations import (
    AddColumn,
    FilterRows,
    FlatMapRows,
    MapBatches,
    MapRows,
    MapTables,
    OnTables,
    UserFunction,
)
from dray.data.pipeline import check_distinct, dropped, first_rows, part_of, renamed, selected
from dray.data.pools.options import check_options, in_workers
from dray.data.relational import MixStoppingCondition
from dray.data.sources.combined import UnionSource
from dray.errors import ConfigError


@with_absent_members
class Dataset(Totals):
    """Rows from a source, and operations on them that run when rows are requested.

    Create one with the functions of `dray.data`. A dataset does not keep its rows: two iterations
    read them twice, unless you call `materialize`. Memory holds a few blocks of 8 MiB. Only `sort`,
    `unique`, `groupby().map_groups` and methods that return all rows hold all of them.

    Args:
        source: The source of the rows.
        operations: Operations on the rows, in order.
        seed: The seed of a random order of all rows; None keeps their order.

    Example:
        >>> import dray.data
        >>> numbers = dray.data.range(1000).map_batches(lambda batch: {"x": batch["id"] * 2})
        >>> numbers.filter(lambda row: row["x"] % 3 == 0).take(2)
        [{'x': 0}, {'x': 6}]
    """

    def __repr__(self) -> str:
        """Describe the dataset without reading rows or calling users' functions."""
        rows = self.source.rows if self._keeps_rows_surely() else None
        said = [] if self.name is None else [f"name={self.name!r}"]
        said.append(f"num_rows={'?' if rows is None else rows}")
        schema = self.known_schema()
        if schema is not None:
            columns = (
                f"{name}: {kind}" for name, kind in zip(schema.names, schema.types, strict=True)
            )
            said.append(f"schema={{{', '.join(columns)}}}")
        if self._operations:
            said.append(f"operations={len(self._operations)}")
        return f"{type(self).__name__}({', '.join(said)})"

    # Operations.

    def map(
        self,
        fn: Callable[..., Mapping[str, object]],
        *,
        fn_args: Sequence[object] | None = None,
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_args: Sequence[object] | None = None,
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **workers: object,
    ) -> Dataset:
        """Return a dataset with the result of a function for each row.

        Args:
            fn: A function from a row (a dict) to a row, or a class with such a `__call__`.
            fn_args: Positional arguments of the function, after the row.
            fn_kwargs: Keyword arguments of the function.
            fn_constructor_args: Positional arguments of the class's constructor.
            fn_constructor_kwargs: Keyword arguments of the class's constructor.
            workers: `concurrency`, `num_cpus` and `num_gpus`, as for `map_batches`.
        """
        function = UserFunction(
            fn, "map", fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
        )
        return self._with(in_workers(Dataset.map, MapRows(function), workers))

    def map_batches(
        self,
        fn: Callable[..., Batch],
        *,
        batch_size: int | Literal["default", "auto"] | None = None,
        batch_format: str | None = "default",
        zero_copy_batch: bool = True,
        fn_args: Sequence[object] | None = None,
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_args: Sequence[object] | None = None,
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **workers: object,
    ) -> Dataset:
        """Return a dataset with the results of a function for batches of rows.

        The function runs in the process that reads the rows, in its read-ahead thread. With
        `concurrency`, it runs in worker processes instead.

        Args:
            fn: A function that takes a batch and returns or yields batches, or a class with such a
                `__call__`.
            batch_size: Number of rows of a batch; None passes blocks as they come.
            batch_format: "numpy" (a dict of arrays, also "default"), "pandas" or "pyarrow" (also
                None).
            zero_copy_batch: False passes arrays that the function may write to.
            fn_args: Positional arguments of the function, after the batch.
            fn_kwargs: Keyword arguments of the function.
            fn_constructor_args: Positional arguments of the class's constructor.
            fn_constructor_kwargs: Keyword arguments of the class's constructor.
            workers: `concurrency` (the number of workers, or a minimum and a maximum: the work
                begins with the minimum and grows as resources become free), and `num_cpus`,
                `num_gpus` and `resources` of each worker.

        Raises:
            ConfigError: An argument is invalid.
        """
        if batch_size == "default" or batch_size == "auto":
            batch_size = None
        if batch_size is not None and not is_whole(plain(batch_size), 1):
            raise ConfigError(f"batch_size must be a number of rows, not {batch_size!r}")
        function = UserFunction(
            fn, "map_batches", fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
        )
        chosen = check_format(batch_format)
        operation = MapBatches(function, batch_size, chosen, copied=not zero_copy_batch)
        return self._with(in_workers(Dataset.map_batches, operation, workers))

    def flat_map(
        self,
        fn: Callable[..., Iterable[Mapping[str, object]]],
        *,
        fn_args: Sequence[object] | None = None,
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_args: Sequence[object] | None = None,
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **workers: object,
    ) -> Dataset:
        """Return a dataset with the rows that a function returns for each row.

        Args:
            fn: A function from a row to any number of rows, or a class with such a `__call__`.
            fn_args: Positional arguments of the function, after the row.
            fn_kwargs: Keyword arguments of the function.
            fn_constructor_args: Positional arguments of the class's constructor.
            fn_constructor_kwargs: Keyword arguments of the class's constructor.
            workers: As for `map_batches`.
        """
        function = UserFunction(
            fn, "flat_map", fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
        )
        return self._with(in_workers(Dataset.flat_map, FlatMapRows(function), workers))

    def filter(
        self,
        fn: Callable[..., object] | None = None,
        expr: str | Expr | pc.Expression | None = None,
        *,
        fn_args: Sequence[object] | None = None,
        fn_kwargs: Mapping[str, object] | None = None,
        fn_constructor_args: Sequence[object] | None = None,
        fn_constructor_kwargs: Mapping[str, object] | None = None,
        **workers: object,
    ) -> Dataset:
        """Return a dataset of the rows that pass a test.

        Args:
            fn: A function from a row to a bool, or a class with such a `__call__`.
            expr: A condition instead of a function, which is faster: an expression such as
                `(col("x") > 3) & col("y").is_in([1, 2])`, or a string, `"x > 3 and y in [1, 2]"`.
            fn_args: Positional arguments of the function, after the row.
            fn_kwargs: Keyword arguments of the function.
            fn_constructor_args: Positional arguments of the class's constructor.
            fn_constructor_kwargs: Keyword arguments of the class's constructor.
            workers: As for `map_batches`.

        Raises:
            ConfigError: `fn` and `expr` are both given or both missing, or `expr` is not a
                condition.
        """
        if (fn is None) == (expr is None):
            raise ConfigError("filter takes a function or an expression: filter(lambda row: ...)")
        if fn is None:
            chosen = parsed(expr) if isinstance(expr, str) else expr
            if not isinstance(chosen, Expr | pc.Expression):
                raise ConfigError(f"expr must be an expression such as col('x') > 3, not {expr!r}")
            passing = UserFunction(Condition(chosen), "filter")
            return self._with(
                in_workers(Dataset.filter, MapTables(passing, keeps_rows=False), workers)
            )
        function = UserFunction(
            fn, "filter", fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
        )
        return self._with(in_workers(Dataset.filter, FilterRows(function), workers))

    def select_columns(self, cols: str | Sequence[str], **workers: object) -> Dataset:
        """Return a dataset with only some columns; Parquet readers then read only these columns."""
        check_options(Dataset.select_columns, workers)
        names = named_columns(cols, "select_columns")
        check_distinct("select_columns", names)
        chosen = self.only(names)
        if chosen is not self:
            return chosen
        return self._with(
            OnTables(functools.partial(selected, names), f"select_columns({names})", own=True)
        )

    def drop_columns(self, cols: Sequence[str], **workers: object) -> Dataset:
        """Return a dataset without some columns."""
        check_options(Dataset.drop_columns, workers)
        names = named_columns(cols, "drop_columns")
        return self._with(
            OnTables(functools.partial(dropped, names), f"drop_columns({names})", own=True)
        )

    def rename_columns(
        self, names: Mapping[str, str] | Sequence[str], **workers: object
    ) -> Dataset:
        """Return a dataset with other column names: old -> new, or the names of all columns."""
        check_options(Dataset.rename_columns, workers)
        given = names.values() if isinstance(names, Mapping) else names
        new = named_columns(given, "rename_columns")
        chosen = dict(zip(names, new, strict=True)) if isinstance(names, Mapping) else new
        return self._with(
            OnTables(functools.partial(renamed, chosen), f"rename_columns({chosen})", own=True)
        )

    def with_column(self, column_name: str, expr: Expr, **workers: object) -> Dataset:
        """Return a dataset with a column that is added or replaced.

        Args:
            column_name: The name of the column.
            expr: The expression of its values.
            workers: As for `map_batches`.

        Raises:
            ConfigError: `expr` is not an expression.

        Example:
            >>> import dray.data
            >>> from dray.data.expressions import col
            >>> dray.data.range(3).with_column("odd", col("id") % 2 == 1).take(2)
            [{'id': 0, 'odd': False}, {'id': 1, 'odd': True}]
        """
        function = UserFunction(Columns([{column_name: expr}], "with_column"), "with_column")
        return self._with(in_workers(Dataset.with_column, MapTables(function), workers))

    def with_columns(
        self,
        exprs: Mapping[str, Expr] | UnnestExpr | None = None,
        *more_exprs: Mapping[str, Expr] | UnnestExpr,
        **workers: object,
    ) -> Dataset:
        """Return a dataset with more columns, each calculated from the existing ones.

        Args:
            exprs: Expressions by column name, or `unnest(...)`.
            more_exprs: More expressions, as keyword arguments.
            workers: As for `map_batches`.

        Raises:
            ConfigError: An argument is neither of these.
        """
        given = [part for part in (exprs, *more_exprs) if part is not None]
        function = UserFunction(Columns(given, "with_columns"), "with_columns")
        return self._with(in_workers(Dataset.with_columns, MapTables(function), workers))

    def add_column(
        self,
        col: str,
        fn: Callable[[Batch], object],
        *,
        batch_format: str | None = "pandas",
        **workers: object,
    ) -> Dataset:
        """Return a dataset with a column that is added or replaced.

        Args:
            col: The name of the column.
            fn: A function from a batch to the values of the column.
            batch_format: The format of batches.
            workers: As for `map_batches`.
        """
        function = UserFunction(fn, "add_column")
        added = AddColumn(function, col, check_format(batch_format))
        return self._with(in_workers(Dataset.add_column, added, workers))

    def on_tables(self, function: Callable[[Table], Table]) -> Dataset:
        """Return a dataset with a function's table for each block, of equally many rows."""
        owner = getattr(function, "__self__", function)
        return self._with(OnTables(function, type(owner).__name__))

    def random_shuffle(
        self, *, seed: int | None = None, num_blocks: int | None = None, **workers: object
    ) -> Dataset:
        """Return a dataset whose rows are in a random order, a new one in each epoch.

        The rows of files are first stored as Arrow, on disk if they are large, so that each row can
        be found. If they do not fit on the disk, shuffle the files
        (`read_parquet(..., shuffle="files")`) and within a buffer (`local_shuffle_buffer_size`).

        Args:
            seed: The seed of the order; None draws one.
            num_blocks: Ignored; for compatibility with Ray.
            workers: Ignored; for compatibility with Ray.
        """
        check_options(Dataset.random_shuffle, workers)
        return self.shuffled(seed)

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Return the dataset unchanged: dray reads in lanes, from several places in turn."""
        return self

    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        strict: bool = False,
        shuffle: bool = False,
        keys: Sequence[str] | None = None,
        sort: bool = False,
    ) -> Dataset:
        """Return the dataset unchanged: its size determines the number of blocks.

        All arguments are ignored; they exist for compatibility with Ray.
        """
        return self

    def limit(self, limit: int) -> Dataset:
        """Return a dataset of the first `limit` rows."""
        if not is_whole(plain(limit), 0):
            raise ConfigError(f"limit takes a number of rows, 0 or more, not {limit!r}")
        ready = self.with_added_columns()
        rows = ready.source.rows
        if rows is not None and ready._seed is None and ready._keeps_rows_surely():
            return Dataset(part_of(ready.source, 0, min(limit, rows)), ready._operations)
        return self.derived(lambda: first_rows(self.blocks(), limit), f"the first {limit} rows")

    def union(self, *other: Dataset) -> Dataset:
        """Return a dataset of the rows of this one, followed by the rows of others.

        If a dataset lacks a column, its rows and the batches of only its rows lack it too. Methods
        that combine rows of several datasets, such as `to_pandas`, `sort` and `materialize`, fill
        in None.
        """
        every = (self, *other)
        if all(not each._operations and each._seed is None for each in every):
            return Dataset(UnionSource([each.source for each in every]))
        return self.derived(
            lambda: (block for each in every for block in each.blocks()),
            f"{len(every)} datasets",
            *other,
        )

    def mix(
        self,
        *other: Dataset,
        weights: Sequence[float] | None = None,
        stopping_condition: MixStoppingCondition = MixStoppingCondition.STOP_ON_LONGEST_DROP,
    ) -> Dataset:
        """Return a dataset that alternates between the rows of this one and of others.

        Args:
            other: The other datasets.
            weights: The relative share of each dataset, this one first; any numbers above 0. None
                takes equally many rows of each.
            stopping_condition: Whether to stop at the end of the shortest dataset or of the
                longest.

        Raises:
            ConfigError: The number of weights is not the number of datasets, or one is not above 0.

        Example:
            >>> import dray.data
            >>> letters = dray.data.from_items(["a", "b", "c"])
            >>> mixed = letters.mix(dray.data.from_items(["x", "y", "z"]), weights=[2, 1])
            >>> "".join(row["item"] for row in mixed.take(5))
            'axbcy'
        """
        every = (self, *other)
        shares = [1.0] * len(every) if weights is None else list(map(plain, weights))
        if len(shares) != len(every) or not all(is_number(each) and each > 0 for each in shares):
            raise ConfigError(
                f"mix takes a weight above 0 for each of the {len(every)} datasets, not {weights!r}"
            )
        if not isinstance(stopping_condition, MixStoppingCondition):
            raise ConfigError(
                "stopping_condition must be one of dray.data.MixStoppingCondition, not "
                f"{stopping_condition!r}"
            )
        made = self.derived(
            lambda: relational.mixed([each.blocks() for each in every], shares, stopping_condition),
            f"a mix of {len(every)} datasets",
            *other,
        )
        made.source.is_stream = any(each.is_stream for each in every)
        return made

    def zip(self, *other: Dataset) -> Dataset:
        """Return a dataset with the columns of this one and of others with equally many rows.

        A name that already exists gets the suffix `_1`, `_2` and so on.
        """
        every = (self, *other)
        return self.derived(
            lambda: relational.zipped([each.blocks() for each in every]), "zipped datasets", *other
        )

    def join(
        self,
        ds: Dataset,
        join_type: str,
        num_partitions: int | None = None,
        on: str | Sequence[str] = "id",
        right_on: str | Sequence[str] | None = None,
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        *,
        partition_size_hint: int | None = None,
        aggregator_ray_remote_args: Mapping[str, object] | None = None,
        validate_schemas: bool = False,
    ) -> Dataset:
        """Return the pairs of rows with equal keys; all rows are held in memory.

        Args:
            ds: The other dataset.
            join_type: "inner", "left_outer", "right_outer", "full_outer", "left_semi",
                "right_semi", "left_anti" or "right_anti".
            num_partitions: Ignored; for compatibility with Ray.
            on: The key columns.
            right_on: The key columns of the other dataset; default: the same names.
            left_suffix: Suffix for this dataset's columns whose names exist in both datasets.
            right_suffix: The same for the other dataset's columns.
            partition_size_hint: Ignored; for compatibility with Ray.
            aggregator_ray_remote_args: Ignored; for compatibility with Ray.
            validate_schemas: Ignored; for compatibility with Ray.
        """
        keys = named_columns(on, "join")
        others = keys if right_on is None else named_columns(right_on, "join")
        pairs = relational.Join(join_type, keys, others, (left_suffix or "", right_suffix or ""))
        return self.derived(
            lambda: [Block(pairs.of(self.to_arrow(), ds.to_arrow()), "joined rows")],
            "joined rows",
            ds,
        )

    def sort(
        self,
        key: str | Sequence[str],
        descending: bool | Sequence[bool] = False,
        boundaries: object = None,
    ) -> Dataset:
        """Return a dataset sorted by some columns; all rows are held in memory.

        Args:
            key: The columns.
            descending: Whether the highest values come first, for all columns or for each.
            boundaries: Ignored; for compatibility with Ray.
        """
        keys = named_columns(key, "sort")
        if not keys:
            raise ConfigError("sort takes columns by their names, not none")
        falls = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if len(falls) != len(keys):
            raise ConfigError(f"descending takes a bool for each of {keys}, not {descending!r}")
        return self.derived(
            lambda: relational.sorted_blocks(self.blocks(), keys, falls), "sorted rows"
        )

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """Return a dataset with a random sample of about this fraction of the rows."""
        if not is_number(plain(fraction)) or not 0 <= fraction <= 1:
            raise ConfigError(f"fraction must be from 0 to 1, not {fraction!r}")
        chosen = seed_of(seed)
        return self.derived(lambda: relational.sampled(self.blocks(), fraction, chosen), "a sample")
