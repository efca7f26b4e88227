"""Arguments that readers share: the order of files, and options of Ray that are ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from dray.compat.arguments import check_arguments, parameter_names
from dray.data.dataset import Dataset
from dray.data.forms.blocks import Row
from dray.data.sources.base import Filesystem, RowsSource, Source
from dray.data.sources.combined import FileShuffleConfig, Shuffle, UnionSource
from dray.data.sources.files import FileRows

# Options of Ray Data that dray ignores, because the data or the machine determines them.
_FOLLOWS = (
    *("parallelism", "ray_remote_args", "concurrency", "num_cpus", "num_gpus", "memory"),
    *("meta_provider", "override_num_blocks", "label_selector", "fallback_strategy", "max_calls"),
    *("resources", "accelerator_type", "runtime_env", "compute"),
)
FileOrder: TypeAlias = FileShuffleConfig | Literal["files"] | None


def in_order(
    found: tuple[list[str], Filesystem],
    shuffle: FileOrder,
    source: Callable[..., Source],
    *how: object,
) -> Dataset:
    """Return files as a dataset, in their order or in a new order for each epoch.

    Args:
        found: The files, and their Arrow filesystem.
        source: A function from files, a filesystem and the arguments `how` to a source.
    """
    files, on = found
    if shuffle is None:
        return Dataset(source(files, on, *how))
    sources = [source([name], on, *how) for name in files]
    return Dataset(UnionSource(sources, Shuffle(shuffle)))


def rows_in_order(
    found: tuple[list[str], Filesystem], shuffle: FileOrder, row: Callable[[bytes, str], Row]
) -> Dataset:
    """Return files that are one row each as a dataset.

    Args:
        row: A function from a file's bytes and path to a row.
    """
    (files, on), seed = found, None
    if shuffle is not None:
        order = Shuffle(shuffle)
        if order.by_epoch:
            seed = order.seed
        else:
            files = [files[number] for number in order.order(len(files), 0)]
    return Dataset(RowsSource(FileRows(files, on, row), f"{len(files)} files", files), seed=seed)


def known_options(
    function: Callable[..., Dataset], options: Mapping[str, object], known: Sequence[str] = ()
) -> dict[str, object]:
    """Return the options that a reader uses; those that only Ray uses are dropped.

    Raises:
        AbsentArgumentError: An option is neither known nor one that only Ray uses.
    """
    unknown = {name: options[name] for name in options if name not in (*known, *_FOLLOWS)}
    if unknown:
        taken = (*parameter_names(function), *known)
        check_arguments(f"dray.data.{function.__name__}", unknown, taken)
    return {name: options[name] for name in known if name in options}
