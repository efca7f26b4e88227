"""Staging: rows stored as Arrow, because they cannot be counted or found one by one otherwise."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator

import pyarrow as pa

from dray.data.forms.blocks import Block, Table, concat
from dray.data.sources.base import BLOCK_BYTES, ArrowFileSource, Source, TableSource
from dray.data.sources.combined import UnionSource
from dray.data.sources.writing import in_files
from dray.errors import StorageError

# Rows up to this size are kept in memory; larger data go to a file.
IN_MEMORY_BYTES = 64 << 20


class Scratch:
    """A temporary directory that is deleted with this object or with the process."""

    def __init__(self) -> None:
        with StorageError.instead("data cannot be staged in the temporary directory"):
            self.path = tempfile.mkdtemp(prefix="dray-data-")
        weakref.finalize(self, _delete, self.path, os.getpid())


def _delete(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked process inherits the finalizer
        shutil.rmtree(path, ignore_errors=True)


def stage(blocks: Iterable[Block], called: str, schema: pa.Schema | None = None) -> Source:
    """Store rows in memory, or in a file if they are large, as a source that finds each by number.

    Args:
        schema: The schema for the case that there are no rows.

    Raises:
        StorageError: There is not enough space.
    """
    held: list[Table] = []
    size = 0
    rest = iter(blocks)
    for block in rest:
        held.append(block.table)
        size += block.table.nbytes
        if size > IN_MEMORY_BYTES:
            every = itertools.chain([concat(held)], (each.table for each in rest))
            return write_arrow(every, called)
    if not held:
        return TableSource(pa.table({}) if schema is None else schema.empty_table(), called)
    return TableSource(concat(held, f"rows of {called}").combine_chunks(), called)


def write_arrow(tables: Iterable[Table], called: str) -> Source:
    """Write tables to Arrow files, one for each run of tables with equal columns, as a source.

    Args:
        tables: The tables.

    Raises:
        DataFunctionError: No type holds all values of a column.
        StorageError: There is not enough space.
    """
    scratch, written = Scratch(), []
    with StorageError.instead(f"data cannot be staged in {scratch.path}"):
        for number, schema, of_file in in_files(table for table in tables if table.num_rows):
            path = os.path.join(scratch.path, f"{number}.arrow")
            with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
                for table in _in_large_chunks(of_file):
                    writer.write_table(table)
            written.append((path, schema))
    columns = concat([schema.empty_table() for _, schema in written], f"rows of {called}").schema
    parts = [ArrowFileSource(*of_file, columns, called, scratch) for of_file in written]
    if len(parts) == 1:
        return parts[0]
    whole = UnionSource(parts)
    whole.name = called
    return whole


def _in_large_chunks(tables: Iterable[Table]) -> Iterator[Table]:
    """Yield rows in chunks of at least a block, because rows are found faster among few chunks."""
    held, size = [], 0
    for batch in itertools.chain.from_iterable(table.to_batches() for table in tables):
        held.append(batch)
        size += batch.nbytes
        if size >= BLOCK_BYTES:
            yield pa.Table.from_batches(held).combine_chunks()
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def shippable(source: Source) -> Source:
    """Return a source that can be sent to many workers; large data are sent through a file."""
    if isinstance(source, TableSource) and source.table.nbytes > _SHIPPED_BYTES:
        return write_arrow([source.table], source.name)
    return source


_SHIPPED_BYTES = 1 << 20
