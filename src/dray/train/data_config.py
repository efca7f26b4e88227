"""The choices of how ranks share datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dray.checks import check_flags
from dray.compat.arguments import checked_arguments
from dray.errors import ArgumentTypeError, ConfigError
from dray.user_warnings import warn_user

if TYPE_CHECKING:
    from dray.data.context import DataContext
    from dray.data.execution_options import ExecutionOptions


@checked_arguments("DataConfig")
@dataclass
class DataConfig:
    """Choices of how ranks share the datasets of a trainer.

    A class of your own may have its own `configure`. Each worker calls it and takes its shares;
    positions are not kept then.

    Args:
        datasets_to_split: Names of the datasets of which each rank gets a share; "all", or the
            others come whole to every rank.
        execution_options: Of Ray's executor, for all datasets or by their names; a shard's
            `get_context()` has them, and they change nothing.
        enable_shard_locality: Nothing; Ray's.
        equal: Whether all ranks get as many rows of an epoch, so that fewer rows than there are
            ranks are left over.
        resume: Whether a run that goes on from a checkpoint goes on amid the epoch as well.

    Raises:
        ConfigError: An argument is malformed.

    Example:
        >>> from dray.train import DataConfig
        >>> DataConfig(datasets_to_split=["train"]).splits("validation")
        False
    """

    datasets_to_split: str | Sequence[str] = "all"
    execution_options: Any = None
    enable_shard_locality: bool = True
    equal: bool = True
    resume: bool = True

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if a field, which may have been set since, is malformed."""
        chosen = self.datasets_to_split
        if chosen != "all" and (isinstance(chosen, str) or not isinstance(chosen, Sequence)):
            raise ArgumentTypeError(
                f"`datasets_to_split` should be 'all' or a list of names, not {chosen!r}"
            )
        check_flags(self, "equal", "resume")

    @staticmethod
    def default_ingest_options() -> ExecutionOptions:
        """Return the options of Ray's executor that the program has set for all datasets."""
        from dray.data.context import DataContext

        return DataContext.get_current().copy().execution_options

    def execution_options_of(self, name: str) -> ExecutionOptions | None:
        """Return the options of Ray's executor for a dataset; None if it has none of its own."""
        given = self.execution_options
        return given.get(name) if isinstance(given, Mapping) else given

    def configure(
        self,
        datasets: Mapping[str, Any],
        world_size: int,
        worker_handles: Sequence[object] | None,
        worker_node_ids: Sequence[str] | None,
    ) -> list[dict[str, Any]]:
        """Return the shares of each rank by name, such as `streaming_split` makes them.

        Args:
            datasets: The datasets by name.
            world_size: The number of ranks.
            worker_handles: None; Ray's.
            worker_node_ids: None; Ray's.
        """
        of_ranks: list[dict[str, Any]] = [{} for _ in range(world_size)]
        for name, dataset in datasets.items():
            if self.splits(name):
                shares = dataset.streaming_split(world_size, equal=self.equal)
            else:
                shares = [dataset.iterator() for _ in range(world_size)]
            for own, share in zip(of_ranks, shares, strict=True):
                own[name] = share
        return of_ranks

    def splits(self, name: str) -> bool:
        """Return whether each rank gets a share of a dataset."""
        return self.datasets_to_split == "all" or name in self.datasets_to_split


@dataclass(frozen=True)
class Datasets:
    """The datasets of a run, as workers get them.

    Attributes:
        by_name: A `dray.data.Dataset` or a dataset of another kind each.
        context: The options of Ray Data that the program has set.
    """

    by_name: Mapping[str, Any]
    config: DataConfig
    context: DataContext | None = None


def checked_datasets(datasets: object, config: object) -> Datasets:
    """Return the datasets that a trainer was given."""
    if config is not None and not isinstance(config, DataConfig):
        raise ConfigError(f"dataset_config must be a DataConfig, not {config!r}")
    if datasets is not None and not isinstance(datasets, Mapping):
        raise ConfigError(
            f"datasets must be a dict such as {{'train': dataset}}, not a {type(datasets).__name__}"
        )
    chosen = config or DataConfig()
    named = dict(datasets or {})
    for name in () if chosen.datasets_to_split == "all" else chosen.datasets_to_split:
        if name not in named:
            warn_user(
                f"datasets_to_split names {name!r}, and the datasets are {', '.join(named) or '-'}"
            )
    return Datasets(named, chosen)
