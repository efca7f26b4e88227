"""The share of one rank: rows that it reads by number, or from a stream that every rank reads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dray.checks import is_whole, plain, seed_of
from dray.data.forms.batches import Run, aligned, run_of
from dray.data.forms.blocks import Block, taken
from dray.data.numbering.order import Numbers
from dray.data.numbering.position import Position, batch_sizes, share
from dray.data.numbering.reading import read_numbers
from dray.data.pipeline import Pipeline
from dray.data.sources.base import BLOCK_BYTES
from dray.errors import ConfigError
from dray.user_warnings import warn_user

# Without a batch size, the first read is this part of a block, as operations may enlarge rows.
_FIRST_PART = 16


@dataclass(frozen=True)
class Batching:
    """The options of an iteration over batches.

    Attributes:
        size: Number of rows of a batch; None keeps blocks as they are.
        drop_last: Whether to drop the last batch if it has fewer rows.
        window: Number of consecutive rows that are shuffled among themselves.

    Raises:
        ConfigError: An option is invalid.
    """

    size: int | None
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
        if self.seed is not None:
            seed_of(self.seed, "local_shuffle_seed")


@dataclass(frozen=True)
class Sharing:
    """The options of the division of rows among ranks.

    Attributes:
        equal: Whether all shares have equally many rows; fewer than `ranks` rows are then left
            over.
        in_order: Whether a single rank reads files one after another instead of in lanes.
    """

    rank: int = 0
    ranks: int = 1
    equal: bool = False
    in_order: bool = False


def share_of(
    dataset: Pipeline, sharing: Sharing, batching: Batching
) -> NumberedShare | StreamedShare:
    """Return the share of a rank.

    A stream is read in its order, and so is a dataset that a single rank reads without shuffling.
    Other datasets are made countable first.
    """
    alone = sharing.ranks == 1 and not batching.window and not dataset.is_shuffled
    if dataset.is_stream or (alone and (sharing.in_order or not dataset.is_countable)):
        return StreamedShare(dataset, sharing)
    return NumberedShare(dataset.countable(), sharing)


def _warn_of_none(reason: str) -> None:
    warn_user(f"an epoch of this dataset has no batches: {reason}")


@dataclass(frozen=True)
class NumberedShare:
    """A share of numbered rows; a rank does not read the rows of other ranks."""

    dataset: Pipeline
    sharing: Sharing

    def runs(self, position: Position, batching: Batching) -> Iterator[Run]:
        """Yield the remaining batches of an epoch."""
        rank, ranks, equal = self.sharing.rank, self.sharing.ranks, self.sharing.equal
        rows = self.dataset.num_rows
        assert rows is not None
        unseen = rows - position.seen.count()
        left = share(unseen, rank, ranks, equal=equal)
        if equal and 0 < rows == unseen < ranks:
            _warn_of_none(
                f"{rows} rows are fewer than the {ranks} ranks, which all get the same number"
            )
        if batching.size is None:
            return map(run_of, self._read(position, left, batching))
        sizes = batch_sizes(left, batching.size, drop_last=batching.drop_last)
        if left and rows == unseen and not any(sizes):
            _warn_of_none(
                f"drop_last leaves out {left} rows, fewer than batch_size={batching.size}"
            )
        return aligned(self._read(position, sum(sizes), batching), sizes)

    def _read(self, position: Position, rows: int, batching: Batching) -> Iterator[Block]:
        dataset, made = self.dataset, Made()
        order = dataset.order(position.epoch, batching.window or 0, batching.seed or 0)
        chunks = self._chunks(position, rows, batching, made)
        source = dataset.source.of_epoch(position.epoch)
        return made.noted(dataset.apply(read_numbers(source, order, chunks)))

    def _chunks(
        self, position: Position, rows: int, batching: Batching, made: Made
    ) -> Iterator[Numbers]:
        """Yield the numbers of the next rows, in chunks of whole batches."""
        size, most = batching.size or 1, self.dataset.source.block_rows()
        begin, step = 0, min(most, batching.size or max(1, most // _FIRST_PART))
        while begin < rows:
            places = np.arange(begin, min(begin + step, rows))
            yield position.seen.number(places * self.sharing.ranks + self.sharing.rank)
            begin += step
            step = max(min(most, made.block_rows()) // size * size, min(size, most))


class Made:
    """The size of the rows that operations return, which may be larger than their input rows.

    For example, decoding images makes them about twenty times larger.
    """

    def __init__(self) -> None:
        self._row_bytes = 1.0

    def noted(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """Yield blocks, and record the size of their rows."""
        for block in blocks:
            self._row_bytes = max(1.0, block.table.nbytes / max(1, block.table.num_rows))
            yield block

    def block_rows(self) -> int:
        """Return the number of rows that make a block of the standard size."""
        return max(1, int(BLOCK_BYTES / self._row_bytes))


@dataclass(frozen=True)
class StreamedShare:
    """A share of rows that come in sequence: every rank reads all of them and keeps its own.

    Because the number of rows is unknown, `equal` holds a row back until every rank has one.
    """

    dataset: Pipeline
    sharing: Sharing

    def runs(self, position: Position, batching: Batching) -> Iterator[Run]:
        """Yield the remaining batches of an epoch."""
        if batching.window:
            raise ConfigError(
                "local_shuffle_buffer_size does not work on a stream: shuffle the stream itself"
            )
        source = self.dataset.source.of_epoch(position.epoch)
        if self.sharing.ranks > 1 or position.seen.count():
            before, after = self.dataset.stream_operations()
            blocks = after(self._own(before(source.open()), position))
        else:
            blocks = self.dataset.blocks(position.epoch)
        if batching.size is None:
            return map(run_of, blocks)
        made = aligned(blocks, itertools.repeat(batching.size))
        if not batching.drop_last:
            return made
        return (run for run in made if run.sizes[0] == batching.size)

    def _own(self, blocks: Iterator[Block], position: Position) -> Iterator[Block]:
        """Yield this rank's rows; with `equal`, only from rounds in which each rank has a row."""
        rank, ranks = self.sharing.rank, self.sharing.ranks
        row = place = 0
        held: Block | None = None
        held_round = 0  # the round of the row that is held back
        for block in blocks:
            unseen = position.seen.unseen(np.arange(row, row + block.table.num_rows))
            places = np.arange(place, place + len(unseen))
            mine = (unseen - row)[places % ranks == rank]
            own = Block(taken(block.table, mine), block.origin)
            row, place = row + block.table.num_rows, place + len(unseen)
            if held is not None and place // ranks > held_round:
                yield held
                held = None
            if self.sharing.equal and place % ranks > rank and own.table.num_rows:
                last = own.table.num_rows - 1  # other ranks have no row of this round yet
                held, held_round = Block(own.table.slice(last, 1), own.origin), place // ranks
                own = Block(own.table.slice(0, last), own.origin)
            if own.table.num_rows:
                yield own
