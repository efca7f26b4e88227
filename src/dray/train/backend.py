"""The extension point for a framework: what it needs before, around and after the train function.

Subclass `Backend` for the hooks and `BackendConfig` for the options, and give the config to
`DataParallelTrainer(backend_config=...)`. Hooks run on the driver and reach workers through the
worker group. `dray.train.torch` is written on this and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dray.train.worker_group import WorkerGroup

__all__ = ["Backend", "BackendConfig"]


class BackendConfig:
    """The options of a framework.

    Attributes:
        modules: What the framework imports, imported before workers start, once for all of them.
    """

    modules: tuple[str, ...] = ("dray.train.worker",)

    @property
    def backend_cls(self) -> type[Backend]:
        """The hooks that go with these options."""
        return Backend


class Backend:
    """Hooks of a framework; all are optional.

    Example:
        >>> from dray.train.backend import Backend
        >>> class SeedBackend(Backend):
        ...     def on_start(self, worker_group, backend_config):
        ...         worker_group.execute(random.seed, 0)
    """

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Called when the workers have started: form process groups here."""

    def on_training_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Called after `on_start`, right before the train function."""

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Called when the train function has returned on every rank, before workers stop."""
