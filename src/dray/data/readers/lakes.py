"""The readers of versioned tables: Iceberg, Delta Lake and Lance."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dray.checks import require
from dray.data.dataset import Dataset
from dray.data.forms.blocks import Block
from dray.data.forms.names import check_column
from dray.data.readers.arguments import FileOrder, in_order, known_options
from dray.data.sources.base import BlocksSource, Filesystem, Source
from dray.data.sources.combined import UnionSource
from dray.errors import ConfigError

# Options of `pyarrow.dataset.Fragment.to_batches`.
_OF_FRAGMENTS = (
    *("filter", "batch_size", "batch_readahead", "fragment_readahead"),
    *("fragment_scan_options", "use_threads", "memory_pool"),
)


def read_iceberg(
    *,
    table_identifier: str,
    row_filter: Any = None,
    parallelism: int = -1,
    selected_fields: Sequence[str] = ("*",),
    snapshot_id: int | None = None,
    scan_kwargs: Mapping[str, Any] | None = None,
    catalog_kwargs: Mapping[str, Any] | None = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Return the present state of an Iceberg table as a dataset, read with pyiceberg.

    Args:
        table_identifier: The name of the table, such as `"sales.orders"`.
        row_filter: A filter for rows as in pyiceberg: a string such as `"x > 3"`, or an expression.
        parallelism: Ignored; for compatibility with Ray.
        selected_fields: The columns to read.
        snapshot_id: The snapshot to read; None selects the latest.
        scan_kwargs: More arguments of `Table.scan`.
        catalog_kwargs: The arguments of `pyiceberg.catalog.load_catalog`: `name`, `type`, `uri` and
            so on.
        override_num_blocks: Ignored; for compatibility with Ray.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        MissingDependencyError: pyiceberg is not installed.
    """
    known_options(read_iceberg, options)
    require("pyiceberg", "pyiceberg")
    from pyiceberg.catalog import load_catalog

    of_catalog = {"name": "default", **(catalog_kwargs or {})}
    table = load_catalog(**of_catalog).load_table(table_identifier)
    chosen = {} if row_filter is None else {"row_filter": row_filter}
    scan = table.scan(
        selected_fields=tuple(selected_fields),
        snapshot_id=snapshot_id,
        **chosen,
        **(scan_kwargs or {}),
    )
    name = f"the table {table_identifier}"

    def produce() -> Iterator[Block]:
        with scan.to_arrow_batch_reader() as reader:
            yield Block(reader.schema.empty_table(), name)
            for batch in reader:
                yield Block(pa.Table.from_batches([batch]), name)

    return Dataset(BlocksSource(produce, name))


def read_delta(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Filesystem | None = None,
    columns: Sequence[str] | None = None,
    parallelism: int = -1,
    shuffle: FileOrder = None,
    include_paths: bool = False,
    override_num_blocks: int | None = None,
    **options: Any,
) -> Dataset:
    """Return the present state of a Delta Lake table as a dataset; deltalake reads the table's log.

    Args:
        path: The directory of the table, or a URL that deltalake supports.
        version: The version to read; None selects the latest.
        storage_options: Credentials and other options, as for `deltalake.DeltaTable`.
        filesystem: An Arrow filesystem whose root is the table; default: deltalake's.
        columns: The columns to read; default: all.
        parallelism: Ignored; for compatibility with Ray.
        shuffle: "files" or a FileShuffleConfig, to read files in a new order in each epoch.
        include_paths: Whether to add a column `path` with the path of each row's file.
        override_num_blocks: Ignored; for compatibility with Ray.
        options: Options of `pyarrow.dataset.Fragment.to_batches`, such as `filter`.

    Raises:
        ConfigError: Several paths are given, or a column is missing.
        MissingDependencyError: deltalake is not installed.
    """
    of_arrow = known_options(read_delta, options, _OF_FRAGMENTS)
    if isinstance(path, list | tuple):
        raise ConfigError("read_delta takes one table; union() the datasets of several")
    require("deltalake", "deltalake")
    from deltalake import DeltaTable

    where = os.fspath(path).rstrip("/")
    table = DeltaTable(where, version=version, storage_options=storage_options)
    dataset = table.to_pyarrow_dataset(filesystem=filesystem)
    chosen = dataset.schema.names if columns is None else list(columns)
    check_column(dataset.schema.empty_table(), chosen)
    schema = pa.schema([dataset.schema.field(name) for name in chosen])
    if include_paths:
        schema = schema.append(pa.field("path", pa.string()))
    fragments = {f"{where}/{each.path}": each for each in dataset.get_fragments()}

    def produce(files: Sequence[str]) -> Iterator[Block]:
        for file in files:
            batches = fragments[file].to_batches(dataset.schema, columns=chosen, **of_arrow)
            for batch in batches:
                part = pa.Table.from_batches([batch])
                if include_paths:
                    part = part.append_column("path", pa.repeat(file, part.num_rows))
                yield Block(part, file)

    def source(files: Sequence[str], on: Filesystem) -> Source:
        return BlocksSource(functools.partial(produce, files), f"the table {where}", schema, files)

    order = shuffle if fragments else None
    return in_order((list(fragments), filesystem), order, source)


def read_lance(
    uri: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    version: int | str | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    scanner_options: Mapping[str, Any] | None = None,
    override_num_blocks: int | None = None,
    **options: object,
) -> Dataset:
    """Return the present state of one or several Lance datasets as a dataset, read with pylance.

    Args:
        uri: The directory or URL, or a list of them.
        version: The version number or tag to read; None selects the latest.
        columns: The columns to read; default: all.
        filter: A filter for rows, written as an SQL WHERE condition.
        storage_options: Credentials and other options, as for `lance.dataset`.
        scanner_options: More arguments of `LanceDataset.scanner`.
        override_num_blocks: Ignored; for compatibility with Ray.
        options: Other options of Ray Data; dray ignores them.

    Raises:
        ConfigError: No path is given.
        MissingDependencyError: pylance is not installed.
    """
    known_options(read_lance, options)
    require("lance", "pylance")
    import lance

    paths = [uri] if isinstance(uri, str | os.PathLike) else list(uri)
    if not paths:
        raise ConfigError("read_lance takes the path of a dataset, or of several")
    chosen = {"columns": columns, "filter": filter, **(scanner_options or {})}
    sources = [
        _of_lance(lance.dataset(os.fspath(path), version, storage_options=storage_options), chosen)
        for path in paths
    ]
    return Dataset(sources[0] if len(sources) == 1 else UnionSource(sources))


def _of_lance(dataset: Any, options: Mapping[str, Any]) -> Source:
    name = f"the dataset {dataset.uri}"

    def produce() -> Iterator[Block]:
        for batch in dataset.scanner(**options).to_batches():
            yield Block(pa.Table.from_batches([batch]), name)

    return BlocksSource(produce, name, dataset.scanner(**options).projected_schema)
