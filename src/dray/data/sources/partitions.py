"""Column values from the paths of files, such as `kind=a/rows.csv`, and filters by them."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dray.data.forms.blocks import Block, Table, put_column
from dray.data.sources.base import Source
from dray.data.sources.parquet import ParquetSource
from dray.errors import ConfigError, shown_url

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartitionStyle", "Partitioning", "PathPartitionFilter", "PathPartitionParser"]

Labels = Mapping[str, object]
# The column with the paths of files, as in Ray Data.
PATH = "path"
# The directory name for null, as in Hive and Arrow.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class PartitionStyle(str, enum.Enum):
    """The styles of directory names: "hive" for `kind=a`, "dir" for `a`."""

    HIVE = "hive"
    DIRECTORY = "dir"


@dataclass(frozen=True)
class Partitioning:
    """The scheme by which directory names become values of columns.

    Attributes:
        style: "hive" for directories such as `kind=a`, "dir" for directories such as `a`.
        base_dir: The directory below which the scheme applies; "dir" needs it.
        field_names: The names of the columns, from the outermost directory inward; "dir" needs
            them.
        field_types: The types of columns, such as `int`; other columns are strings.
        filesystem: Ignored; for compatibility with Ray.

    Raises:
        ConfigError: The style is unknown, or a needed argument is missing.

    Example:
        >>> from dray.data.sources.partitions import Partitioning
        >>> Partitioning("dir", "/data", ["kind"]).labels("/data/cat/1.png")
        {'kind': 'cat'}
    """

    style: str
    base_dir: str | os.PathLike[str] | None = None
    field_names: Sequence[str] | None = None
    field_types: Mapping[str, Callable[[str], object]] | None = None
    filesystem: object = None

    def __post_init__(self) -> None:
        if self.style not in ("hive", "dir"):
            raise ConfigError(f"style must be 'hive' or 'dir', not {self.style!r}")
        if self.style == "dir" and not self.field_names:
            raise ConfigError("Partitioning('dir') needs field_names, the names of the columns")

    def labels(self, path: str) -> dict[str, object]:
        """Return the values in the path of a file.

        Raises:
            ConfigError: The file is in more or fewer directories than there are names.
        """
        folders = self._below(path).split("/")[:-1]
        if self.style == "hive":
            found = dict(folder.split("=", 1) for folder in folders if folder.find("=") > 0)
            if self.field_names:
                found = {name: found[name] for name in self.field_names if name in found}
        else:
            names = list(self.field_names or ())
            if len(folders) != len(names):
                raise ConfigError(
                    f"{shown_url(path)} is in {len(folders)} directories below base_dir, but "
                    f"field_names has {names}"
                )
            found = dict(zip(names, folders, strict=True))
        types = self.field_types or {}
        return {
            name: None if value == _NO_VALUE else types.get(name, str)(unquote(value))
            for name, value in found.items()
        }

    def _below(self, path: str) -> str:
        base, inner = self._base(), path.rpartition("://")[2].lstrip("/")
        return inner[len(base) :].lstrip("/") if inner.startswith(base) else inner

    def _base(self) -> str:
        given = os.fspath(self.base_dir or "")
        return given.rpartition("://")[2].rpartition("anonymous@")[2].strip("/")

    def is_partitioned(self, path: str) -> bool:
        """Return whether a file is in a directory whose name may contain a value."""
        inside = path.rpartition("://")[2].lstrip("/").startswith(self._base())
        return inside and "/" in self._below(path)


class PathPartitionParser:
    """A function from the path of a file to the values in it, according to a `Partitioning`.

    Args:
        partitioning: The scheme.

    Attributes:
        scheme: The argument `partitioning`.

    Example:
        >>> from dray.data.sources.partitions import PathPartitionParser
        >>> PathPartitionParser.of("hive")("rows/kind=a/1.csv")
        {'kind': 'a'}
    """

    def __init__(self, partitioning: Partitioning) -> None:
        self.scheme = partitioning

    @staticmethod
    def of(
        style: str = PartitionStyle.HIVE,
        base_dir: str | os.PathLike[str] | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, Callable[[str], object]] | None = None,
        filesystem: object = None,
    ) -> PathPartitionParser:
        """Return the parser for a `Partitioning` with these arguments."""
        scheme = Partitioning(style, base_dir, field_names, field_types, filesystem)
        return PathPartitionParser(scheme)

    def __call__(self, path: str) -> dict[str, object]:
        """Return the values in a path; an empty dict for a file outside such directories."""
        return self.scheme.labels(path) if self.scheme.is_partitioned(path) else {}


class PathPartitionFilter:
    """A filter of files by the values in their paths, for `partition_filter=`.

    Args:
        path_partition_parser: Returns the values in the path of a file.
        filter_fn: A function from these values (a dict) to whether to read the file.

    Attributes:
        parser: The argument `path_partition_parser`.

    Example:
        >>> from dray.data.sources.partitions import PathPartitionFilter
        >>> of_2024 = PathPartitionFilter.of(lambda values: values.get("year") == "2024")
        >>> of_2024(["rows/year=2023/1.csv", "rows/year=2024/1.csv"])
        ['rows/year=2024/1.csv']
    """

    def __init__(
        self,
        path_partition_parser: PathPartitionParser,
        filter_fn: Callable[[dict[str, object]], object],
    ) -> None:
        self.parser, self._passes = path_partition_parser, filter_fn

    @staticmethod
    def of(
        filter_fn: Callable[[dict[str, object]], object],
        style: str = PartitionStyle.HIVE,
        base_dir: str | os.PathLike[str] | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, Callable[[str], object]] | None = None,
        filesystem: object = None,
    ) -> PathPartitionFilter:
        """Return a filter; the arguments after the function are those of a `Partitioning`."""
        parser = PathPartitionParser.of(style, base_dir, field_names, field_types, filesystem)
        return PathPartitionFilter(parser, filter_fn)

    def __call__(self, paths: Sequence[str]) -> list[str]:
        """Return the paths of the files to read."""
        return [path for path in paths if self.apply(path)]

    def apply(self, path: str) -> bool:
        """Return whether to read a file."""
        return bool(self._passes(self.parser(path)))


def labels_from(partitioning: Partitioning | None, include_paths: bool) -> Callable[[str], Labels]:
    """Return a function from a path to its values, which include the path itself if requested."""

    def label(path: str) -> Labels:
        found = {} if partitioning is None else partitioning.labels(path)
        return {**found, PATH: path} if include_paths else found

    return label


def labelled(table: Table, labels: Labels) -> Table:
    """Return a table with each missing label added as a constant column.

    The label with the path of the file replaces a column of that name.
    """
    import pyarrow as pa

    for name, value in labels.items():
        if name == PATH or name not in table.column_names:
            table = put_column(table, name, pa.repeat(value, table.num_rows))
    return table


class LabelledSource(Source):
    """The rows of a Parquet file with additional constant columns."""

    def __init__(self, source: ParquetSource, labels: Labels) -> None:
        self._source, self._labels = source, dict(labels)
        self.rows, self.lanes, self.name = source.rows, source.lanes, source.name
        self.row_bytes, self.files = source.row_bytes + 8 * len(self._labels), source.files

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        for block in self._source.open(start, stop):
            yield block._replace(table=labelled(block.table, self._labels), own=False)

    def schema(self) -> pa.Schema:
        return labelled(self._source.schema().empty_table(), self._labels).schema
