"""Staging: rows that cannot be counted or found one by one are written down as Arrow, once."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable

import pyarrow as pa

from dray.data.forms.blocks import Block, Table, concat
from dray.data.sources.base import ArrowFileSource, Source, TableSource
from dray.errors import DataFunctionError, StorageError, describe

# Rows up to this size are kept in memory; more of them go to a file.
IN_MEMORY_BYTES = 64 << 20
_RECORD_ROWS = 1 << 16


class Scratch:
    """A directory of this process's, which is deleted with this object, or with the process."""

    def __init__(self) -> None:
        with StorageError.instead("data cannot be staged in the directory of temporary files"):
            self.path = tempfile.mkdtemp(prefix="dray-data-")
        weakref.finalize(self, _delete, self.path, os.getpid())


def _delete(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a fork has the same finalizer
        shutil.rmtree(path, ignore_errors=True)


def stage(blocks: Iterable[Block], called: str, schema: pa.Schema | None = None) -> Source:
    """Return rows as a source that finds each by its number: in memory, or in a file if large.

    Args:
        blocks: The rows.
        called: Their name in messages.
        schema: Their schema where there are none.

    Raises:
        StorageError: There is no room for them.
    """
    held: list[Table] = []
    size = 0
    rest = iter(blocks)
    for block in rest:
        held.append(block.table)
        size += block.table.nbytes
        if size > IN_MEMORY_BYTES:
            return write_arrow(held, (each.table for each in rest), called)
    if not held:
        return TableSource(pa.table({}) if schema is None else schema.empty_table(), called)
    return TableSource(concat(held), called)


def write_arrow(first: Iterable[Table], rest: Iterable[Table], called: str) -> ArrowFileSource:
    """Write tables into a file of Arrow, and return it as a source.

    Args:
        first: Tables that say which columns there are, of which types.
        rest: The others.
        called: Their name in messages.
    """
    scratch = Scratch()
    path = os.path.join(scratch.path, "rows.arrow")
    begun = concat(list(first))
    with (
        StorageError.instead(f"data cannot be staged in {scratch.path}"),
        pa.OSFile(path, "wb") as file,
        pa.ipc.new_file(file, begun.schema) as writer,
    ):
        for table in itertools.chain([begun], rest):
            writer.write_table(_alike(table, begun.schema, called), _RECORD_ROWS)
    return ArrowFileSource(path, called, scratch)


def _alike(table: Table, schema: pa.Schema, called: str) -> Table:
    """Return a table with the columns and types that the first rows had."""
    if table.schema == schema:
        return table
    with contextlib.suppress(KeyError):
        table = table.select(schema.names)
    try:
        return table.cast(schema)
    except (ValueError, pa.ArrowException) as error:
        raise DataFunctionError(
            f"rows of {called} are not alike: the first ones have {_named(schema)}, and later ones "
            f"{_named(table.schema)} ({describe(error)})"
        ) from error


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def shippable(source: Source) -> Source:
    """Return a source that can be sent to many workers: what is large goes by way of a file."""
    if isinstance(source, TableSource) and source.table.nbytes > _SHIPPED_BYTES:
        return write_arrow([source.table], [], source.name)
    return source


_SHIPPED_BYTES = 1 << 20
