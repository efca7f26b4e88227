"""The choices that all readers of files have, and datasets of the files that they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dray.compat.arguments import check_arguments, parameter_names
from dray.data.dataset import Dataset
from dray.data.forms.blocks import Row
from dray.data.sources.base import Filesystem, RowsSource, Source
from dray.data.sources.combined import FileShuffleConfig, Shuffle, UnionSource
from dray.data.sources.files import FileRows
from dray.data.sources.finding import Paths, find_files
from dray.data.sources.partitions import Labels, Partitioning, PathPartitionFilter, labels_of

# Options of Ray Data for which dray has no use: they follow from the data or the machine.
_FOLLOWS = (
    *("parallelism", "ray_remote_args", "concurrency", "num_cpus", "num_gpus", "memory"),
    *("meta_provider", "override_num_blocks", "label_selector", "fallback_strategy", "max_calls"),
    *("resources", "accelerator_type", "runtime_env", "compute"),
)
FileOrder: TypeAlias = FileShuffleConfig | Literal["files"] | None


@dataclass(frozen=True)
class Wanted:
    """The files to read, as the arguments of a reader say."""

    paths: Paths
    endings: Sequence[str]
    filesystem: Filesystem | None
    partition_filter: PathPartitionFilter | None
    partitioning: Partitioning | None
    include_paths: bool
    ignore_missing_paths: bool
    shuffle: FileOrder

    def found(self) -> tuple[list[str], Filesystem]:
        """Return the files, and the filesystem of Arrow that they are on.

        Raises:
            NoSuchFileError: There is none.
        """
        return find_files(
            self.paths,
            self.endings,
            self.filesystem,
            self.partition_filter,
            ignore_missing=self.ignore_missing_paths,
        )

    def label(self, path: str) -> Labels:
        """Return the values that a file has from its path."""
        return labels_of(path, self.partitioning, include_path=self.include_paths)

    def in_order(self, source: Callable[..., Source], *how: object) -> Dataset:
        """Return files as a dataset: in their order, or in one that epochs decide.

        Args:
            source: Makes a source of files, a filesystem, what returns the values that a file has
                from its path, and further choices.
        """
        found, on = self.found()
        if self.shuffle is None:
            return Dataset(source(found, on, self.label, *how))
        sources = [source([name], on, self.label, *how) for name in found]
        return Dataset(UnionSource(sources, Shuffle(self.shuffle)))

    def rows_in_order(self, row: Callable[[bytes, str], Row]) -> Dataset:
        """Return files that are rows themselves as a dataset.

        Args:
            row: Makes a row of a file's bytes and path.
        """
        found, on = self.found()
        seed = None
        if self.shuffle is not None:
            order = Shuffle(self.shuffle)
            if order.by_epoch:
                seed = order.seed
            else:
                found = [found[number] for number in order.order(len(found), 0)]
        return Dataset(
            RowsSource(FileRows(found, on, row), f"{len(found)} files", found), seed=seed
        )


def known_options(
    function: Callable[..., Dataset], options: Mapping[str, object], known: Sequence[str] = ()
) -> dict[str, object]:
    """Return the options that a function has; Ray's own ones are as if they had been left out.

    Raises:
        AbsentArgumentError: A function has neither parameters nor a use for one.
    """
    unknown = {name: options[name] for name in options if name not in (*known, *_FOLLOWS)}
    if unknown:
        taken = (*parameter_names(function), *known)
        check_arguments(f"dray.data.{function.__name__}", unknown, taken)
    return {name: options[name] for name in known if name in options}
