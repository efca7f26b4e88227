"""PyTorch: the trainer, and functions that adapt a train function to many workers."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dray.checks import require
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import attach_getattr
from dray.train.config import RunConfig
from dray.train.data_config import DataConfig
from dray.train.scaling import ScalingConfig
from dray.train.torch.config import TorchConfig
from dray.train.trainer import DataParallelTrainer, checked
from dray.train.validation import ValidationConfig

__all__ = [
    "TorchCheckpoint",
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]


# Names of the train function, imported at first use: the driver does not import torch for them.
_HOMES = {
    "dray.train.torch.checkpoint": ("TorchCheckpoint",),
    "dray.train.torch.data": ("prepare_data_loader",),
    "dray.train.torch.devices": ("get_device", "get_devices"),
    "dray.train.torch.model": ("prepare_model",),
}
attach_getattr(__name__, names=_HOMES)

if TYPE_CHECKING:
    from dray.train.torch.checkpoint import TorchCheckpoint
    from dray.train.torch.data import prepare_data_loader
    from dray.train.torch.devices import get_device, get_devices
    from dray.train.torch.model import prepare_model


@checked_arguments("TorchTrainer")
class TorchTrainer(DataParallelTrainer):
    """A trainer that runs a PyTorch train function on many workers that share a process group.

    Args:
        train_loop_per_worker: The train function. It takes no argument, or one: the config.
        train_loop_config: Argument of the function, if it takes one.
        torch_config: Settings of the process group.
        scaling_config: Number of workers, and resources of each; default: one with one CPU.
        run_config: The run's name, place and behaviour.
        datasets: Name -> a `dray.data.Dataset`, or data to make one of. `get_dataset_shard` gives
            each rank its share.
        dataset_config: Options for sharing the datasets among ranks.
        validation_config: The function that `report(validation=...)` runs, and its options.
        metadata: Deprecated; must be None.
        resume_from_checkpoint: Deprecated; must be None.

    Raises:
        ConfigError: An argument is malformed.
        MissingDependencyError: torch is not installed.

    Example:
        >>> from dray.train import ScalingConfig, report
        >>> from dray.train.torch import TorchTrainer
        >>> def train_loop():
        ...     import torch
        ...     total = torch.ones(1)
        ...     torch.distributed.all_reduce(total)
        ...     report({"workers": total.item()})
        >>> trainer = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2))
        >>> trainer.fit().metrics
        {'workers': 2.0}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], object] | Callable[[dict[str, Any]], object],
        *,
        train_loop_config: Mapping[str, object] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: object = None,
        resume_from_checkpoint: object = None,
    ) -> None:
        require("torch", "torch>=2.4")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=checked(torch_config, TorchConfig, "torch_config"),
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )


def enable_reproducibility(seed: int = 0) -> None:
    """Make the numbers of a train function reproducible, at some cost in speed.

    Seeds torch, numpy and Python, and makes torch use only deterministic algorithms. CUDA no longer
    selects algorithms by timing.

    Args:
        seed: The seed; use the same on every rank.

    Example:
        >>> from dray.train.torch import TorchTrainer, enable_reproducibility
        >>> def train_loop():
        ...     import torch
        ...     enable_reproducibility(seed=1)
        ...     return round(torch.rand(1).item(), 4)
        >>> TorchTrainer(train_loop).fit().return_value  # the same each time
        0.7576
    """
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
