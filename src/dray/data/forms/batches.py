"""Batches cut from blocks: several from one large block, or one from several small blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dray.data.forms.blocks import Arrays, Batch, Block, Table, concat, to_batch
from dray.data.forms.memory import own_array


class Run(NamedTuple):
    """Consecutive batches in one table.

    Attributes:
        origins: The origin of the rows of the first batch, and that of the other batches.
        own: As for a block.
    """

    table: Table
    sizes: list[int]
    origins: tuple[str, str]
    own: bool = False

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the first row of each batch and the row after its last one."""
        begin = 0
        for size in self.sizes:
            yield begin, begin + size
            begin += size

    def blocks(self) -> Iterator[Block]:
        """Yield each batch as a block."""
        for begin, end in self.ranges():
            yield Block(self.table.slice(begin, end - begin), self.origins[begin > 0])

    def batches(self, batch_format: str) -> Iterator[Batch]:
        """Yield each batch in a format; its arrays are writable."""
        if batch_format not in ("default", "numpy"):
            for block in self.blocks():
                yield to_batch(block.table, batch_format)
            return
        columns = self.columns()
        for begin, end in self.ranges():
            yield {name: array[begin:end] for name, array in columns.items()}

    def columns(self) -> Arrays:
        """Return all rows as writable NumPy arrays."""
        table = self.table
        return {name: own_array(table.column(name), own=self.own) for name in table.column_names}


def run_of(block: Block) -> Run:
    """Return a block as a run of one batch."""
    return Run(block.table, [block.table.num_rows], (block.origin, block.origin), block.own)


def aligned(blocks: Iterable[Block], sizes: Iterable[int]) -> Iterator[Run]:
    """Yield rows as runs of batches of these sizes; the last batch may have fewer rows.

    Args:
        sizes: The sizes; after the last one, no more rows are taken.
    """
    wanted = iter(sizes)
    size = next(wanted, None)
    held: list[Block] = []
    rows = 0
    for block in blocks if size is not None else ():
        held.append(block)
        rows += block.table.num_rows
        whole: list[int] = []
        taken = 0
        while size is not None and rows - taken >= size:
            whole.append(size)
            taken += size
            size = next(wanted, None)
        if not whole:
            continue
        table, first, own, _ = joined(held)
        yield Run(table.slice(0, taken), whole, (first, block.origin), own)
        if size is None:
            return
        rows -= taken
        # The slice has an explicit length, because Arrow slices beyond the end without columns.
        held = [Block(table.slice(taken, rows), block.origin, own)] if rows else []
    if rows:
        yield run_of(joined(held))


def joined(blocks: list[Block]) -> Block:
    """Return several blocks as one."""
    table, own = concat([block.table for block in blocks]), all(block.own for block in blocks)
    return Block(table, blocks[0].origin, own)


def rebatched(blocks: Iterable[Block], sizes: Iterable[int]) -> Iterator[Block]:
    """Yield blocks of these sizes; the last block may have fewer rows.

    Args:
        sizes: The sizes; after the last one, no more rows are taken.
    """
    for run in aligned(blocks, sizes):
        yield from run.blocks()
