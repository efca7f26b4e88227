"""The dataset: a source of rows and what is to be done with them, when they are asked for."""

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
    """Rows from a source, and operations on them that run when rows are asked for.

    Make one with the functions of `dray.data`. Nothing is kept: who iterates twice reads twice,
    unless `materialize` has been called. Memory holds a few blocks of 8 MiB, not the data; only
    `sort`, `unique`, `groupby().map_groups` and what returns all rows hold all of them.

    Args:
        source: The rows.
        operations: Operations on them, in order.
        seed: Decides a random order of all rows; None leaves them in order.

    Example:
        >>> import dray.data
        >>> numbers = dray.data.range(1000).map_batches(lambda batch: {"x": batch["id"] * 2})
        >>> numbers.filter(lambda row: row["x"] % 3 == 0).take(2)
        [{'x': 0}, {'x': 6}]
    """

    def __repr__(self) -> str:
        """Say what is known without reading rows or calling users' functions."""
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
        """Return a dataset of what a function makes of each row.

        Args:
            fn: It takes a row, a dict, and returns another one; or a class that is called so.
            fn_args: Arguments after the row.
            fn_kwargs: The same by name.
            fn_constructor_args: Arguments of the class.
            fn_constructor_kwargs: The same by name.
            workers: `concurrency`, `num_cpus`, `num_gpus`, as for `map_batches`.
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
        """Return a dataset of what a function makes of batches.

        The function runs in the process that reads, in the thread that reads ahead; with
        `concurrency` in as many workers.

        Args:
            fn: It takes a batch, and returns or yields batches; or a class that is called so.
            batch_size: Rows of a batch; None takes blocks as they come.
            batch_format: "numpy" (a dict of arrays, also "default"), "pandas" or "pyarrow" (also
                None).
            zero_copy_batch: False gives the function arrays that it may write to.
            fn_args: Arguments after the batch.
            fn_kwargs: The same by name.
            fn_constructor_args: Arguments of the class.
            fn_constructor_kwargs: The same by name.
            workers: `concurrency` (how many workers, or the least and the most: it begins with the
                least, and grows as resources are free), `num_cpus`, `num_gpus` and `resources`
                of each.

        Raises:
            ConfigError: An argument is malformed.
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
        """Return a dataset of the rows that a function makes of each row.

        Args:
            fn: It takes a row, and returns any number of rows; or a class that is called so.
            fn_args: Arguments after the row.
            fn_kwargs: The same by name.
            fn_constructor_args: Arguments of the class.
            fn_constructor_kwargs: The same by name.
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
        """Return a dataset of the rows that pass.

        Args:
            fn: It takes a row, and returns whether it passes; or a class that is called so.
            expr: A condition in place of a function, which is faster: an expression such as
                `(col("x") > 3) & col("y").is_in([1, 2])`, or a text, `"x > 3 and y in [1, 2]"`.
            fn_args: Arguments after the row.
            fn_kwargs: The same by name.
            fn_constructor_args: Arguments of the class.
            fn_constructor_kwargs: The same by name.
            workers: As for `map_batches`.

        Raises:
            ConfigError: There are both, or none, or the expression is none.
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
        """Return a dataset with some columns alone; files of Parquet are read for them alone."""
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
        """Return a dataset with other names of columns: old -> new, or all of them."""
        check_options(Dataset.rename_columns, workers)
        given = names.values() if isinstance(names, Mapping) else names
        new = named_columns(given, "rename_columns")
        chosen = dict(zip(names, new, strict=True)) if isinstance(names, Mapping) else new
        return self._with(
            OnTables(functools.partial(renamed, chosen), f"rename_columns({chosen})", own=True)
        )

    def with_column(self, column_name: str, expr: Expr, **workers: object) -> Dataset:
        """Return a dataset with one more column, or another one in its place.

        Args:
            column_name: Its name.
            expr: The calculation of its values.
            workers: As for `map_batches`.

        Raises:
            ConfigError: It is no expression.

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
        """Return a dataset with more columns, all of them calculated from those that there are.

        Args:
            exprs: Expressions by the columns' names, or `unnest(...)`.
            more_exprs: The same.
            workers: As for `map_batches`.

        Raises:
            ConfigError: It is something else.
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
        """Return a dataset with one more column, or another one in its place.

        Args:
            col: Its name.
            fn: It takes a batch, and returns the values.
            batch_format: The format of batches.
            workers: As for `map_batches`.
        """
        function = UserFunction(fn, "add_column")
        added = AddColumn(function, col, check_format(batch_format))
        return self._with(in_workers(Dataset.add_column, added, workers))

    def on_tables(self, function: Callable[[Table], Table]) -> Dataset:
        """Return a dataset of what a function makes of blocks, each a table of as many rows."""
        owner = getattr(function, "__self__", function)
        return self._with(OnTables(function, type(owner).__name__))

    def random_shuffle(
        self, *, seed: int | None = None, num_blocks: int | None = None, **workers: object
    ) -> Dataset:
        """Return a dataset whose rows are in a random order, another one in every epoch.

        Rows in files are written down as Arrow once, so that each can be found: for data that is
        larger than the disk, shuffle files (`read_parquet(..., shuffle="files")`) and within a
        buffer (`local_shuffle_buffer_size`).

        Args:
            seed: Decides the order; None is a random one.
            num_blocks: Nothing; Ray's.
            workers: Nothing; Ray's.
        """
        check_options(Dataset.random_shuffle, workers)
        return self.shuffled(seed)

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """Return the dataset: its blocks are read in lanes, from several places in turn."""
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
        """Return the dataset: how many blocks it is read in follows from its size.

        All arguments are Ray's.
        """
        return self

    def limit(self, limit: int) -> Dataset:
        """Return a dataset of the first rows."""
        if not is_whole(plain(limit), 0):
            raise ConfigError(f"limit takes a number of rows, 0 or more, not {limit!r}")
        ready = self.with_added_columns()
        rows = ready.source.rows
        if rows is not None and ready._seed is None and ready._keeps_rows_surely():
            return Dataset(part_of(ready.source, 0, min(limit, rows)), ready._operations)
        return self.derived(lambda: first_rows(self.blocks(), limit), f"the first {limit} rows")

    def union(self, *other: Dataset) -> Dataset:
        """Return a dataset of the rows of this one and then of others.

        A column that one of them lacks is not in its rows, nor in batches of them alone; it is None
        where rows of several are put together, as by `to_pandas`, `sort` and `materialize`.
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
        """Return a dataset of the rows of this one and of others in turn.

        Args:
            other: The others.
            weights: The part of the rows that each has, of this one first; any numbers above 0.
                None has as many of each.
            stopping_condition: The end: when the first has no more rows, or when all have none.

        Raises:
            ConfigError: There are more or fewer weights than datasets, or one is not above 0.

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
        """Return a dataset with the columns of this one and of others, of as many rows.

        A name that is there already gets `_1`, `_2` and so on.
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
        """Return the pairs of rows whose keys are equal; all rows are held in memory for it.

        Args:
            ds: The other dataset.
            join_type: "inner", or "outer", "semi" or "anti" after "left_", "right_" or "full_".
            num_partitions: Nothing; Ray's.
            on: The keys.
            right_on: Those of the other one; default: the same.
            left_suffix: The end of names of columns that both have, of this one.
            right_suffix: The same of the other one.
            partition_size_hint: Nothing; Ray's.
            aggregator_ray_remote_args: Nothing; Ray's.
            validate_schemas: Nothing; Ray's.
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
        """Return a dataset in the order of some columns; all rows are held in memory for it.

        Args:
            key: The columns.
            descending: Whether the highest come first, for all columns or for each.
            boundaries: Nothing; Ray's, where to cut the rows into blocks.
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
        """Return a dataset of about a fraction of the rows."""
        if not is_number(plain(fraction)) or not 0 <= fraction <= 1:
            raise ConfigError(f"fraction must be from 0 to 1, not {fraction!r}")
        chosen = seed_of(seed)
        return self.derived(lambda: relational.sampled(self.blocks(), fraction, chosen), "a sample")
