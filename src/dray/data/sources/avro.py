"""Avro files as a source, read with fastavro."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from dray.checks import require
from dray.data.forms.blocks import Table, rows_to_table
from dray.data.sources.base import BLOCK_BYTES, BLOCK_ROWS, BlocksSource, Filesystem
from dray.data.sources.files import by_file
from dray.data.sources.finding import naming
from dray.data.sources.partitions import Labels

_AVRO = b"Obj\x01"
_FIRST_ROWS = 256  # used to estimate the size of the other rows


def avro_source(
    files: Sequence[str],
    filesystem: Filesystem,
    label: Callable[[str], Labels],
    opening: Mapping[str, object],
) -> BlocksSource:
    """Return Avro files as a source with a row for each record.

    Raises:
        MissingDependencyError: fastavro is not installed.
    """
    require("fastavro", "fastavro")
    import fastavro

    def parts(path: str) -> Iterator[Table]:
        with naming(path), filesystem.open_input_stream(path, **opening) as file:
            stream = io.BufferedReader(file)
            if stream.peek(4)[:4] != _AVRO:
                raise ValueError("it is not an Avro file")
            reader, most = fastavro.reader(stream), _FIRST_ROWS
            while rows := list(itertools.islice(reader, most)):
                table = rows_to_table(rows)
                most = BLOCK_BYTES * len(rows) // max(1, table.nbytes)
                most = max(1, min(BLOCK_ROWS, most))
                yield table

    return by_file(files, parts, label)
