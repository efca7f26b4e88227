"""Values that files have from their paths: `kind=a/rows.parquet`, or `a/rows.parquet`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from dray.compat.attributes import attach_getattr
from dray.data.forms.blocks import Block, Table, put_column
from dray.data.sources.base import Source
from dray.data.sources.parquet import ParquetSource
from dray.errors import ConfigError, shown_url

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartitionStyle", "Partitioning"]

Labels = Mapping[str, object]
# The column of files' paths, as Ray Data calls it.
PATH = "path"


class PartitionStyle(str, enum.Enum):
    """The ways in which directories name values: `kind=a`, or `a` alone."""

    HIVE = "hive"
    DIRECTORY = "dir"


@dataclass(frozen=True)
class Partitioning:
    """Values of columns that directories are named after.

    Attributes:
        style: "hive" if directories are called such as `kind=a`, "dir" if they are called `a`.
        base_dir: The directory below which this is so; "dir" needs it.
        field_names: Names of the columns, from the outermost directory on; "dir" needs them.
        field_types: Types of them, such as `int`; others are text.
        filesystem: Nothing; Ray's.

    Raises:
        ConfigError: The style is unknown, or a part is missing.

    Example:
        >>> from dray.data.sources.partitions import Partitioning
        >>> Partitioning("dir", "/data", ["kind"]).labels("/data/cat/1.png")
        {'kind': 'cat'}
    """

    style: str
    base_dir: str | None = None
    field_names: Sequence[str] | None = None
    field_types: Mapping[str, Callable[[str], object]] | None = None
    filesystem: object = None

    def __post_init__(self) -> None:
        if self.style not in ("hive", "dir"):
            raise ConfigError(f"style must be 'hive' or 'dir', not {self.style!r}")
        if self.style == "dir" and not self.field_names:
            raise ConfigError("Partitioning('dir') needs field_names, the names of the columns")

    def labels(self, path: str) -> dict[str, object]:
        """Return the values that a file has from its path.

        Raises:
            ConfigError: It has more or fewer directories than there are names.
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
                    f"{shown_url(path)} is in {len(folders)} directories below base_dir, "
                    f"for {names}"
                )
            found = dict(zip(names, folders, strict=True))
        types = self.field_types or {}
        return {name: types.get(name, str)(unquote(value)) for name, value in found.items()}

    def _below(self, path: str) -> str:
        base = (self.base_dir or "").rpartition("://")[2].rpartition("anonymous@")[2].strip("/")
        inner = path.rpartition("://")[2].lstrip("/")
        return inner[len(base) :].lstrip("/") if inner.startswith(base) else inner


def labelled(table: Table, labels: Labels) -> Table:
    """Return a table with one value more in all rows for each label that it has no column for.

    The path of its file takes the place of a column of that name.
    """
    import pyarrow as pa

    for name, value in labels.items():
        if name == PATH or name not in table.column_names:
            table = put_column(table, name, pa.repeat(value, table.num_rows))
    return table


class LabelledSource(Source):
    """The rows of a file of Parquet, with the same further values in each."""

    def __init__(self, source: ParquetSource, labels: Labels) -> None:
        self._source, self._labels = source, dict(labels)
        self.rows, self.lanes, self.name = source.rows, source.lanes, source.name
        self.row_bytes = source.row_bytes + 8 * len(self._labels)

    def open(self, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        for block in self._source.open(start, stop):
            yield block._replace(table=labelled(block.table, self._labels), own=False)

    def schema(self) -> pa.Schema:
        return labelled(self._source.schema().empty_table(), self._labels).schema


attach_getattr(__name__, names={"dray.data.sources.combined": ("FileShuffleConfig",)})
