"""Strategies and the environment, which get devices and ranks from the run."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from dray.checks import require
from dray.errors import ConfigError
from dray.train.context import TrainContext, get_context
from dray.train.datasets import is_of_shard
from dray.train.lightning.package import load_lightning
from dray.train.torch import get_device
from dray.train.torch.resumable import ResumableLoader

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_lightning = load_lightning()
_environments: Any = load_lightning("plugins.environments")
_strategies: Any = load_lightning("strategies")


class RayLightningEnvironment(_environments.LightningEnvironment):
    """The Lightning environment that has the ranks of the run; it starts no processes.

    Example:
        >>> def train_loop():
        ...     import lightning.pytorch as pl
        ...     from dray.train.lightning import RayDDPStrategy, RayLightningEnvironment
        ...     plugins = [RayLightningEnvironment()]
        ...     trainer = pl.Trainer(strategy=RayDDPStrategy(), plugins=plugins, accelerator="auto")
    """

    @property
    def creates_processes_externally(self) -> bool:
        """Return True, because the run has started the processes."""
        return True

    def world_size(self) -> int:
        """Return the number of workers."""
        return get_context().get_world_size()

    def global_rank(self) -> int:
        """Return this worker's rank."""
        return get_context().get_world_rank()

    def local_rank(self) -> int:
        """Return this worker's rank on its node."""
        return get_context().get_local_rank()

    def node_rank(self) -> int:
        """Return the rank of this worker's node."""
        return get_context().get_node_rank()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the run sets the number of workers."""

    def set_global_rank(self, rank: int) -> None:
        """Give Lightning's logging the rank of the run, instead of Lightning's own count."""
        super().set_global_rank(self.global_rank())

    def teardown(self) -> None:
        """Do nothing: the worker keeps its environment variables."""


class _OfRun:
    """The part of a strategy that the run determines: device, ranks and data loaders."""

    cluster_environment: Any
    lightning_module: Any

    @property
    def root_device(self) -> torch.device:
        """Return this worker's device."""
        return get_device()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Return the number of shares of the data, and the rank that selects this worker's."""
        context = get_context()
        return {"num_replicas": context.get_world_size(), "rank": context.get_world_rank()}

    def process_dataloader(self, dataloader: Any) -> Any:
        """Set Lightning's count of batches to that of a loader that resumes within an epoch."""
        dataset = getattr(dataloader, "dataset", None)
        batches = getattr(dataset, "batches", dataloader)
        if is_of_shard(batches):  # it has no length, so Lightning reads one batch ahead
            batches.hold_back()
        elif type(dataloader) is ResumableLoader:
            warnings.filterwarnings("ignore", ".*your dataloader is not resumable")
            behind, trainer = dataloader.count_all(), self.lightning_module.trainer
            if trainer.training:  # other ranks may have counted the batches that are read
                progress = trainer.fit_loop.epoch_loop.batch_progress.current
                progress.increment_by(behind - progress.ready)
        return super().process_dataloader(dataloader)  # type: ignore[misc]


class RayDDPStrategy(_OfRun, _strategies.DDPStrategy):
    """Lightning's DDPStrategy, with its options, for the ranks of a run; it replicates models."""


class RayFSDPStrategy(_OfRun, _strategies.FSDPStrategy):
    """Lightning's FSDPStrategy, with its options, for the ranks of a run; it shards models."""


class RayDeepSpeedStrategy(_OfRun, _strategies.DeepSpeedStrategy):
    """Lightning's DeepSpeedStrategy, with its options, for the ranks of a run.

    Raises:
        MissingDependencyError: deepspeed is not installed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require("deepspeed", "deepspeed")
        super().__init__(*args, **kwargs)

    def setup_distributed(self) -> None:
        """Use the ranks of the run, whose process group exists already."""
        import torch

        # DeepSpeedStrategy refuses indices that do not begin at 0; it uses the root device anyway.
        count = torch.cuda.device_count()
        self.parallel_devices = [torch.device("cuda", index) for index in range(count)]
        super().setup_distributed()


DrayLightningEnvironment = RayLightningEnvironment
DrayDDPStrategy = RayDDPStrategy
DrayFSDPStrategy = RayFSDPStrategy
DrayDeepSpeedStrategy = RayDeepSpeedStrategy


def prepare_trainer(trainer: T) -> T:
    """Check that a Lightning Trainer fits the run, and return it.

    Args:
        trainer: The Trainer.

    Raises:
        ConfigError: A flag of the Trainer contradicts the run; the message names it.
        NotInTrainingError: Called outside a train function.
    """
    context = get_context()
    if not isinstance(trainer, _lightning.Trainer):
        raise ConfigError(
            f"prepare_trainer() takes a Trainer of {_lightning.__name__}, not {trainer!r}; where "
            "both packages of Lightning are installed, import yours before dray.train.lightning"
        )
    if not isinstance(trainer.strategy, _OfRun):
        raise ConfigError(
            f"Trainer(strategy={type(trainer.strategy).__name__}) does not know the run's "
            "workers; give it strategy=RayDDPStrategy() of dray.train.lightning, or "
            "RayFSDPStrategy() or RayDeepSpeedStrategy()"
        )
    environment = trainer.strategy.cluster_environment
    if not isinstance(environment, RayLightningEnvironment):
        raise ConfigError(
            f"Trainer(plugins=...) has {type(environment).__name__} as its environment, which is "
            "not the run's; give it plugins=[RayLightningEnvironment()] of dray.train.lightning"
        )
    _check_counts(trainer, context)
    return trainer


def _check_counts(trainer: Any, context: TrainContext) -> None:
    """Raise ConfigError if the Trainer's numbers of devices or nodes are not the run's."""
    here, everywhere = context.get_local_world_size(), context.get_world_size()
    counted, nodes = trainer.num_devices, trainer.num_nodes
    there = f"the run has {everywhere} workers, {here} of them on this node"
    if counted not in (1, here, trainer.accelerator.auto_device_count()):
        raise ConfigError(
            f"Trainer(devices={counted}) contradicts the run: {there}; leave devices='auto', and "
            "set ScalingConfig(num_workers=...)"
        )
    if nodes > 1 and nodes * here != everywhere:
        raise ConfigError(
            f"Trainer(num_nodes={nodes}) contradicts the run: {there}; leave num_nodes out"
        )
