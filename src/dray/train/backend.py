"""The extension point for a framework: what it needs before, around and after the train function.

Subclass `Backend` for the hooks and `BackendConfig` for the options, and give the config to
`DataParallelTrainer(backend_config=...)`. Hooks run on the driver and reach workers through the
worker group. `dray.train.torch` and `dray.train.jax` are written on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from dray.checks import fields_of, is_number, plain
from dray.compat.attributes import attach_getattr
from dray.engines.rpc import code_names
from dray.errors import ConfigError

if TYPE_CHECKING:
    from dray.train.planning.ranks import RankAssignment
    from dray.train.run.worker_group import WorkerGroup

__all__ = ["Backend", "BackendConfig"]

_LONGEST_S = 10 * 365 * 86400.0  # what frameworks take without overflowing


def check_seconds(value: object, what: str) -> float:
    """Return a number of seconds of any library, such as NumPy's, as int or float."""
    seconds = plain(value)
    if not is_number(seconds) or not 0 < seconds < _LONGEST_S:
        raise ConfigError(f"{what} must be a number of seconds, more than 0, not {value!r}")
    return float(seconds) if isinstance(seconds, float) else int(seconds)


class BackendConfig:
    """The options of a framework.

    Attributes:
        modules: Modules of the framework, imported before workers start, once for all of them.
        modules_of_names: Further modules of it, of the first step say, for train functions that
            use a name. For others that would be in vain.

    Example:
        >>> from dray.train.backend import BackendConfig
        >>> BackendConfig().backend_cls.__name__  # no framework to set up
        'Backend'
    """

    modules: tuple[str, ...] = ("dray.train.worker.train_worker", "dray.train.context")
    modules_of_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def modules_for(self, function: Callable[..., object]) -> tuple[str, ...]:
        """Return what to import before workers start that run this train function."""
        of_names = self.modules_of_names
        if not of_names:
            return self.modules
        used = [
            of_names[name] for name in sorted(of_names.keys() & code_names.of_function(function))
        ]
        return tuple(dict.fromkeys(itertools.chain(self.modules, *used)))

    @property
    def backend_cls(self) -> type[Backend]:
        """The hooks that go with these options."""
        return Backend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return the maker of the context around train functions; default: none."""
        return nullcontext

    @property
    def framework(self) -> str | None:
        """The framework's name, such as "torch"."""
        return None

    def check(self) -> None:
        """Raise ConfigError if an option, which may have been set since, is malformed."""

    def to_dict(self) -> dict[str, Any]:
        """Return the options, by name."""
        return fields_of(self)


class Backend:
    """Hooks of a framework; all are optional.

    Attributes:
        share_cuda_visible_devices: Whether workers see the devices of all workers of their node,
            of whatever family, rather than their own alone.
        has_replica_groups: Whether groups of workers could be replaced one by one. dray restarts
            all workers of a run, and refuses a framework that says so.

    Example:
        >>> import os
        >>> from dray.train import DataParallelTrainer
        >>> from dray.train.backend import Backend, BackendConfig
        >>> class Greeting(Backend):
        ...     def on_start(self, worker_group, backend_config):
        ...         worker_group.execute(os.putenv, "GREETING", "hello")
        >>> class GreetingConfig(BackendConfig):
        ...     backend_cls = Greeting
        >>> trainer = DataParallelTrainer(lambda: None, backend_config=GreetingConfig())
        >>> trainer.fit().error is None
        True
    """

    share_cuda_visible_devices: bool = False
    has_replica_groups: bool = False
    # What several workers talk through, and what one has.
    _channels: ClassVar[tuple[str, str]] = ("no process group", "no process group")

    def collectives(
        self,
        positions: Sequence[RankAssignment],
        backend_config: BackendConfig,
        environ: Mapping[str, str],
    ) -> tuple[str, str]:
        """Called for a plan: says what workers there would talk through, and what is to be known.

        Args:
            positions: Places of the workers, by rank.
            backend_config: The options.
            environ: Environment variables of the workers.

        Returns:
            The name, such as "gloo", and a warning or an empty text.
        """
        return self._channels[len(positions) == 1], ""

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Called when the workers have started: form process groups here."""

    def on_training_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Called after `on_start`, right before the train function."""

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Called when the train function has returned on every rank, before workers stop.

        The run has its result by then, so an error here is only a warning.
        """


attach_getattr(__name__)
