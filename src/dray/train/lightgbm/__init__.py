"""LightGBM: the trainer, and the network of its workers."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dray.checks import require
from dray.compat.attributes import AbsentMember, attach_getattr
from dray.train.backend import Backend, BackendConfig
from dray.train.boosting import OlderForm, limit_threads, train_function
from dray.train.config import RunConfig
from dray.train.constants import TRAIN_DATASET_KEY
from dray.train.data_config import DataConfig
from dray.train.run.worker_group import WorkerGroup
from dray.train.scaling import ScalingConfig
from dray.train.trainer import DataParallelTrainer, checked
from dray.train.validation import ValidationConfig
from dray.train.worker.current_session import current_session
from dray.user_warnings import warn_user

if TYPE_CHECKING:
    from dray.train.lightgbm.callback import (
        DrayTrainReportCallback,
        LightGBMCheckpoint,
        RayTrainReportCallback,
    )
    from dray.train.lightgbm.frames import normalize_pandas_for_lightgbm

__all__ = [
    "DrayTrainReportCallback",
    "LightGBMCheckpoint",
    "LightGBMConfig",
    "LightGBMTrainer",
    "RayTrainReportCallback",
    "get_network_params",
    "normalize_pandas_for_lightgbm",
]

# Only training rows are shared. Early stopping needs the same evaluation rows on all ranks, or the
# ranks would stop in different rounds, and wait for each other.
_DIVIDED = DataConfig(datasets_to_split=[TRAIN_DATASET_KEY])
_LOWEST_PORT = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 100


class LightGBMBackend(Backend):
    """The hooks that reserve a port on every worker, and send all ports to all workers."""

    _channels = ("sockets", "no network")

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Reserve a port on each worker; one worker needs none."""
        if len(worker_group) == 1:
            worker_group.execute(_know_network, [])
            return
        ports = worker_group.execute(_hold_port)
        addresses = [worker.address for worker in worker_group.workers]
        worker_group.execute(_know_network, list(zip(addresses, ports, strict=True)))
        worker_group.collectives = self._channels[0]


@dataclass
class LightGBMConfig(BackendConfig):
    """Options of LightGBM on several workers; there are none yet.

    Example:
        >>> from dray.train.lightgbm import LightGBMConfig
        >>> LightGBMConfig().framework
        'lightgbm'
    """

    backend_cls = LightGBMBackend
    framework = "lightgbm"
    modules = (*BackendConfig.modules, "lightgbm", "dray.train.lightgbm.callback")

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return the context manager that sets up the training thread."""
        return _boosting


class LightGBMTrainer(DataParallelTrainer):
    """A trainer that runs a train function on many workers, which train one LightGBM model.

    Each worker loads its own part of the rows, and calls `lightgbm.train` with the parameters that
    `get_network_params()` returns.

    Args:
        train_loop_per_worker: The train function. It takes no argument, or one: the config.
        train_loop_config: Argument of the function, if it takes one.
        lightgbm_config: Options of LightGBM; there are none yet.
        scaling_config: Number of workers, and resources of each; default: one with one CPU.
        run_config: The run's name, place and behaviour.
        datasets: Name -> a `dray.data.Dataset`, or data to make one of. `get_dataset_shard` gives
            each rank its share.
        dataset_config: Options for sharing the datasets among ranks. By default the older form
            without a function shares only `train`.
        validation_config: The function that `report(validation=...)` runs, and its options.
        metadata: Deprecated; must be None.
        resume_from_checkpoint: Deprecated; must be None.

        label_column: Column of the labels, in the older form without a function.
        params: Parameters of `lightgbm.train`, in the older form.
        num_boost_round: Number of rounds, in the older form; default: 10.
        **train_kwargs: Further arguments of `lightgbm.train`, in the older form.

    Raises:
        ConfigError: An argument is malformed.
        MissingDependencyError: lightgbm is not installed.

    Example:
        >>> from dray.train import ScalingConfig, get_context
        >>> from dray.train.lightgbm import (
        ...     LightGBMTrainer, RayTrainReportCallback, get_network_params
        ... )
        >>> def train_loop():
        ...     import lightgbm, numpy
        ...     rows = numpy.arange(200.0)[get_context().get_world_rank() :: 2]
        ...     data = lightgbm.Dataset(rows[:, None], rows > 90)
        ...     params = {"objective": "binary", "tree_learner": "data", "verbosity": -1}
        ...     params |= get_network_params()
        ...     lightgbm.train(params, data, 5, callbacks=[RayTrainReportCallback()])
        >>> scaling = ScalingConfig(num_workers=2)
        >>> result = LightGBMTrainer(train_loop, scaling_config=scaling).fit()
        >>> RayTrainReportCallback.get_model(result.checkpoint).current_iteration()
        5
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], Any] | Callable[[dict[str, Any]], Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        lightgbm_config: LightGBMConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: Any = None,
        resume_from_checkpoint: Any = None,
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        num_boost_round: int | None = None,
        **train_kwargs: Any,
    ) -> None:
        require("lightgbm", "dray[lightgbm]")
        config = checked(lightgbm_config, LightGBMConfig, "lightgbm_config")
        function = train_function(
            LightGBMTrainer,
            train_loop_per_worker,
            _train_older,
            label_column,
            params,
            num_boost_round,
            datasets,
            train_kwargs,
        )
        if train_loop_per_worker is None and dataset_config is None:
            dataset_config = _DIVIDED
        super().__init__(
            function,
            train_loop_config=train_loop_config,
            backend_config=config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )

    get_model = AbsentMember()


def _train_older(form: OlderForm) -> None:
    from dray.train.lightgbm.older_form import train

    train(form, get_network_params())


# The functions below run in the worker.

_held: socket.socket | None = None
_network: dict[str, Any] | None = None
_failure: BaseException | None = None  # ends with the process


def get_network_params() -> dict[str, Any]:
    """Return the parameters that connect `lightgbm.train` with the other workers.

    Call it right before `lightgbm.train`, because it frees the worker's reserved port. Outside a
    train function of `LightGBMTrainer` it warns, and returns an empty dict.

    Returns:
        `machines`, `num_machines` and `local_listen_port`; an empty dict for one worker.

    Example:
        >>> from dray.train import ScalingConfig
        >>> from dray.train.lightgbm import LightGBMTrainer, get_network_params
        >>> def train_loop():
        ...     return get_network_params()["num_machines"]
        >>> scaling = ScalingConfig(num_workers=2)
        >>> LightGBMTrainer(train_loop, scaling_config=scaling).fit().return_value
        2
    """
    global _held
    if _network is None:
        warn_user(
            "get_network_params() was called outside a train function of LightGBMTrainer, so "
            "LightGBM trains in this process alone"
        )
        return {}
    if _held is not None:
        _held.close()
        _held = None
    return dict(_network)


def _hold_port() -> int:
    """Find a free port, and reserve it.

    LightGBM binds the port itself and shares it with no other socket, so the port must be freed
    right before. Until LightGBM has bound it, only a program that asks for this number can take it:
    the port lies below the range from which the kernel assigns ports.
    """
    global _held
    try:
        lowest_given = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        lowest_given = 0
    for _ in range(_ATTEMPTS):
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        choice = range(_LOWEST_PORT, lowest_given)
        try:
            held.bind(("", random.SystemRandom().choice(choice) if choice else 0))
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        _held = held
        port: int = held.getsockname()[1]
        return port
    raise ConnectionError(f"{_ATTEMPTS} ports from {_LOWEST_PORT} on are in use; free some")


def _know_network(machines: Sequence[tuple[str, int]]) -> None:
    """Store the addresses and ports of all workers, by rank."""
    global _network
    session = current_session("LightGBMTrainer")
    session.clean_ups.callback(_forget_network)
    if not machines:
        _network = {}
        return
    # LightGBM connects each machine to the later ones of the list, and waits 200 ms if one does not
    # listen yet. Rank 0 is last in the list, because it usually starts first.
    _network = {
        "machines": ",".join(f"{address}:{port}" for address, port in reversed(machines)),
        "num_machines": len(machines),
        "local_listen_port": machines[session.assignment.rank][1],
    }


def _forget_network() -> None:
    """Forget the other workers, for a process that continues after the run."""
    global _network
    _network = None


@contextlib.contextmanager
def _boosting() -> Iterator[None]:
    """Limit LightGBM to the threads of the worker, and keep an error of the train function alive.

    The error's frames refer to the booster. If the booster were freed, its network would close, the
    other ranks would fail too, and the first error would be a matter of chance.
    """
    from lightgbm.basic import _LIB

    global _failure
    limit_threads(_LIB)
    try:
        yield
    except BaseException as error:
        _failure = error if _network else None
        raise


attach_getattr(
    __name__,
    names={
        "dray.train.lightgbm.callback": [
            "DrayTrainReportCallback",
            "RayTrainReportCallback",
            "LightGBMCheckpoint",
        ],
        "dray.train.lightgbm.frames": ["normalize_pandas_for_lightgbm"],
    },
)
