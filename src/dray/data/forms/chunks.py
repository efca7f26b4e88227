"""The chunks of a table, from which rows are taken without copying the other rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dray.data.forms.blocks import RowNumbers, Table, taken


class Chunks:
    """A table from whose chunks rows are taken separately.

    Arrow would first join the chunks of a column. This copies all rows, and fails for strings of
    more than 2 GiB.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._batches = table.to_batches()
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])

    def take(self, rows: RowNumbers) -> Table:
        """Return a copy of rows by number."""
        if len(self._batches) < 2:
            return taken(self.table, rows)
        if not len(rows):
            return self.table.slice(0, 0)
        order = np.argsort(rows, kind="stable")
        rising = np.asarray(rows)[order]
        parts, begin = [], 0
        for number in np.unique(np.searchsorted(self._ends, rising, side="right")).tolist():
            batch, after = self._batches[number], int(self._ends[number])
            end = int(np.searchsorted(rising, after))
            chosen = rising[begin:end] - (after - batch.num_rows)
            parts.append(taken(pa.Table.from_batches([batch]), chosen))
            begin = end
        places: RowNumbers = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return taken(pa.concat_tables(parts).combine_chunks(), places)
