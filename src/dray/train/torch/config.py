"""The options of a PyTorch run, its hooks, and the modules that its workers import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from dray.errors import ConfigError
from dray.settings import Settings
from dray.train.backend import Backend, BackendConfig, check_seconds

if TYPE_CHECKING:
    from dray.train.planning.ranks import RankAssignment
    from dray.train.run.worker_group import WorkerGroup

__all__ = ["TorchBackend", "TorchConfig"]

# Making an optimizer, or a model of many ranks, imports this: 800 modules, one second.
_OF_THE_FIRST_STEP = ("torch._dynamo",)
# Names of `lightning.pytorch`, of `pytorch_lightning`, and of dray's package for them.
_OF_LIGHTNING = (
    *("lightning", "LightningModule", "RayDDPStrategy", "RayFSDPStrategy", "RayDeepSpeedStrategy"),
    *("DrayDDPStrategy", "DrayFSDPStrategy", "DrayDeepSpeedStrategy"),
    *("RayLightningEnvironment", "DrayLightningEnvironment"),
)
_OF_TRANSFORMERS = ("transformers", "TrainingArguments", "Seq2SeqTrainingArguments")


class TorchBackend(Backend):
    """The hooks that form the process group before the train function, and destroy it after it."""

    share_cuda_visible_devices = True

    def collectives(
        self,
        positions: Sequence[RankAssignment],
        backend_config: BackendConfig,
        environ: Mapping[str, str],
    ) -> tuple[str, str]:
        """Return the collective backend of a run, and a warning about it for the user, or ""."""
        from dray.train.torch.process_group import choose_backend

        assert isinstance(backend_config, TorchConfig)
        return choose_backend(positions, backend_config.backend)

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Have all ranks join the process group."""
        from dray.train.torch.process_group import form_process_group

        assert isinstance(backend_config, TorchConfig)
        timeout = timedelta(seconds=backend_config.timeout_s)
        form_process_group(worker_group, backend_config.backend, timeout)

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Destroy the process group on every rank."""
        from dray.train.torch.process_group import leave_process_group

        # A communicator that hangs never returns.
        worker_group.execute(leave_process_group, timeout_s=Settings().parting_s)


@dataclass
class TorchConfig(BackendConfig):
    """Options of the workers' `torch.distributed` process group.

    Args:
        backend: "gloo", "nccl" or another backend of torch. Default: the backend of the workers'
            accelerators (nccl, xccl, hccl or xla); gloo without accelerators, and if workers share
            a GPU that is `cuda` to PyTorch.
        init_method: "env" or "tcp"; with both, the ranks meet at a store that rank 0 opens on a
            free port.
        timeout_s: Time limit of a collective, in seconds.

    Raises:
        ConfigError: `init_method` or `timeout_s` is malformed.

    Example:
        >>> from dray.train.torch import TorchConfig, TorchTrainer
        >>> trainer = TorchTrainer(print, torch_config=TorchConfig(backend="gloo", timeout_s=120))
        >>> trainer.plan().backend
        'gloo'
    """

    backend_cls = TorchBackend
    framework = "torch"
    modules = (
        *BackendConfig.modules,
        "torch",
        "torch.distributed",
        "torch.nn.parallel",
        "torch.utils.data",
        "dray.train.torch.data",
        "dray.train.torch.model",
        "dray.train.torch.process_group",
    )

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800
    modules_of_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(
            (
                *("optim", "SGD", "Adam", "AdamW", "prepare_model", "compile"),
                *("DistributedDataParallel", "DDP", "FullyShardedDataParallel", "fully_shard"),
            ),
            _OF_THE_FIRST_STEP,
        ),
        **dict.fromkeys(_OF_LIGHTNING, (*_OF_THE_FIRST_STEP, "lightning.pytorch")),
        "pytorch_lightning": (*_OF_THE_FIRST_STEP, "pytorch_lightning"),
        "Accelerator": (*_OF_THE_FIRST_STEP, "accelerate"),
        **dict.fromkeys(_OF_TRANSFORMERS, (*_OF_THE_FIRST_STEP, "transformers.trainer")),
    }

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ConfigError if an option is malformed; options may be set after construction."""
        if self.init_method not in ("env", "tcp"):
            raise ConfigError(f"init_method must be 'env' or 'tcp', not {self.init_method!r}")
        self.timeout_s = check_seconds(self.timeout_s, "timeout_s")
        if self.backend is not None:
            if not isinstance(self.backend, str) or not self.backend:
                raise ConfigError(f"backend must be a name such as 'gloo', not {self.backend!r}")
            self.backend = self.backend.lower()  # PyTorch ignores case, too

    def modules_for(self, function: Callable[..., Any]) -> tuple[str, ...]:
        """Return the modules to import before workers start; only the Lightning package in use."""
        modules = super().modules_for(function)
        other = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
        if "lightning.pytorch" not in modules or not (other or "pytorch_lightning" in modules):
            return modules
        rest = (module for module in modules if module != "lightning.pytorch")
        return tuple(dict.fromkeys((*rest, "pytorch_lightning")))
