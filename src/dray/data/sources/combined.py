"""Sources that combine others: a range of one, or several in a fixed or shuffled order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dray.checks import seed_of
from dray.data.forms.blocks import Block, RowNumbers, Table, concat, taken
from dray.data.sources.base import LANES, Source
from dray.data.sources.schemas import schema_of_all
from dray.errors import ConfigError


@dataclass(frozen=True)
class FileShuffleConfig:
    """A random order of files as in Ray Data, for `read_parquet(..., shuffle=...)`.

    Args:
        seed: The seed of the order; None draws one when files are read.
        reseed_after_execution: Whether each epoch has a new order.

    Example:
        >>> import dray.data
        >>> dray.data.FileShuffleConfig(seed=1).reseed_after_execution
        True
    """

    seed: int | None = None
    reseed_after_execution: bool = True


class Shuffle:
    """The order of files in each epoch.

    Args:
        config: "files" or a FileShuffleConfig.

    Raises:
        ConfigError: `config` is neither, or its seed is not an integer.
    """

    def __init__(self, config: object) -> None:
        if config == "files":
            config = FileShuffleConfig()
        if not isinstance(config, FileShuffleConfig):
            raise ConfigError(f'shuffle must be "files" or a FileShuffleConfig, not {config!r}')
        self.seed = seed_of(config.seed)
        self.by_epoch = config.reseed_after_execution

    def order(self, files: int, epoch: int) -> list[int]:
        """Return the numbers of the files in the order of an epoch."""
        seeds = (self.seed, epoch) if self.by_epoch else (self.seed,)
        numbers: list[int] = np.random.default_rng(seeds).permutation(files).tolist()
        return numbers


class SliceSource(Source):
    """A range of the rows of another source, the same in each epoch."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source, self._start = source.of_epoch(0), start
        self.rows = max(0, stop - start)
        self.indexed, self.row_bytes = source.indexed, source.row_bytes
        self.lanes, self.name, self.files = source.lanes, source.name, source.files

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        end = self.rows if stop is None else stop
        return self._source.open(self._start + start, self._start + (end or 0))

    def take(self, rows: RowNumbers) -> Table:
        return self._source.take(np.asarray(rows) + self._start)

    def block_rows(self) -> int:
        return self._source.block_rows()

    def schema(self) -> pa.Schema | None:
        return self._source.schema()


class UnionSource(Source):
    """The rows of several sources in sequence.

    Args:
        shuffle: The order of the sources in each epoch; None keeps the given order.
    """

    def __init__(self, sources: Sequence[Source], shuffle: Shuffle | None = None) -> None:
        self._sources, self._shuffle = list(sources), shuffle
        self.name = f"the union of {len(self._sources)} datasets"
        self.has_shuffled_parts = shuffle is not None or any(
            source.has_shuffled_parts for source in sources
        )
        sizes = [source.rows for source in sources]
        self.is_stream = any(source.is_stream for source in sources)
        self._ends = np.cumsum([size or 0 for size in sizes], dtype=np.int64)
        self.rows = None if None in sizes else int(self._ends[-1])
        self.indexed = self.rows is not None and all(source.indexed for source in sources)
        most = sum(source.lanes for source in sources)
        self.lanes = 1 if self.indexed else next(number for number in LANES if number <= most)
        self.row_bytes = max(source.row_bytes for source in sources)
        self.files = [file for source in sources for file in source.files]

    def of_epoch(self, epoch: int) -> Source:
        """Return the sources in the order of an epoch, each as it reads that epoch."""
        sources = [source.of_epoch(epoch) for source in self._sources]
        if self._shuffle is None:
            return self if sources == self._sources else UnionSource(sources)
        order = self._shuffle.order(len(sources), epoch)
        return UnionSource([sources[number] for number in order])

    def leaves(self) -> list[Source]:
        if not self.has_shuffled_parts:
            return [self]
        return [leaf for source in self._sources for leaf in source.leaves()]

    def rebuilt(self, leaves: Iterator[Source]) -> Source:
        if not self.has_shuffled_parts:
            return next(leaves)
        return UnionSource([source.rebuilt(leaves) for source in self._sources], self._shuffle)

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        if self.rows is None:
            for source in self._sources:
                yield from source.open()
            return
        end, begin = self.rows if stop is None else stop, 0
        for source, after in zip(self._sources, self._ends.tolist(), strict=True):
            low, high = max(start, begin) - begin, min(end, after) - begin
            if low < high:
                yield from source.open(low, high)
            begin = after

    def take(self, rows: RowNumbers) -> Table:
        rows = np.asarray(rows)
        of_source = np.searchsorted(self._ends, rows, side="right")
        parts, places = [], []
        for number in np.unique(of_source):
            chosen = np.flatnonzero(of_source == number)
            begin = self._ends[number - 1] if number else 0
            parts.append(self._sources[number].take(rows[chosen] - begin))
            places.append(chosen)
        if len(parts) == 1:
            return parts[0]
        return taken(concat(parts), np.argsort(np.concatenate(places)))

    def block_rows(self) -> int:
        return min(source.block_rows() for source in self._sources)

    def schema(self) -> pa.Schema | None:
        if self._shuffle is not None:  # with an order of files, all sources have the same columns
            return self._sources[0].schema()
        schemas = [source.schema() for source in self._sources]
        known = [schema for schema in schemas if schema is not None]
        return schema_of_all(known) if len(known) == len(schemas) else None
