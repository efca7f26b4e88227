"""TensorFlow: the trainer, and the cluster of its workers for MultiWorkerMirroredStrategy."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dray.checks import require
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import attach_getattr
from dray.engines.rpc.actor_host import set_variables
from dray.train.backend import Backend, BackendConfig
from dray.train.config import RunConfig
from dray.train.data_config import DataConfig
from dray.train.run.worker_group import WorkerGroup
from dray.train.scaling import ScalingConfig
from dray.train.trainer import DataParallelTrainer, checked
from dray.train.validation import ValidationConfig
from dray.train.worker.cpu_affinity import asked_threads
from dray.train.worker.current_session import current_session
from dray.train.worker.network_env import hold_port, host_port

if TYPE_CHECKING:
    from dray.train.tensorflow.checkpoint import TensorflowCheckpoint

__all__ = ["TensorflowCheckpoint", "TensorflowConfig", "TensorflowTrainer", "prepare_dataset_shard"]

# TensorFlow reads this when it is imported: whether tf.keras is Keras 2, of the package tf_keras.
_KERAS_2 = "TF_USE_LEGACY_KERAS"


class TensorflowBackend(Backend):
    """The hooks that reserve a port on every worker, and send all ports to all workers."""

    _channels = ("gRPC", "gRPC")  # on CPUs; on GPUs also NCCL

    def on_start(self, worker_group: WorkerGroup, backend_config: BackendConfig) -> None:
        """Reserve a port on each worker, and send all addresses and ports to all workers."""
        ports = worker_group.execute(_hold_port)
        addresses = [worker.address for worker in worker_group.workers]
        worker_group.execute(_know_cluster, addresses, ports)
        worker_group.collectives = self._channels[0]
        if len(addresses) > 1 and all(address.startswith("127.") for address in addresses):
            worker_group.warn(
                "TensorFlow's workers listen on every address of this machine, and obey anybody "
                "who connects: make sure that nobody else can"
            )


@dataclass
class TensorflowConfig(BackendConfig):
    """Options of TensorFlow on several workers; there are none yet.

    Example:
        >>> from dray.train.tensorflow import TensorflowConfig
        >>> TensorflowConfig().framework
        'tensorflow'
    """

    backend_cls = TensorflowBackend
    framework = "tensorflow"
    modules = (*BackendConfig.modules, "tensorflow", "dray.train.tensorflow")


@checked_arguments("TensorflowTrainer")
class TensorflowTrainer(DataParallelTrainer):
    """A trainer that runs a TensorFlow train function on many workers: one TensorFlow cluster.

    While the function runs, `TF_CONFIG` names all workers, as
    `tf.distribute.MultiWorkerMirroredStrategy()` requires. If the package tf_keras is installed,
    `tf.keras` is Keras 2 in the workers, because `fit` of Keras 3 does not work with that strategy.
    You can set `TF_USE_LEGACY_KERAS` to choose otherwise.

    Args:
        train_loop_per_worker: The train function. It takes no argument, or one: the config.
        train_loop_config: Argument of the function, if it takes one.
        tensorflow_config: Options of TensorFlow; there are none yet.
        scaling_config: Number of workers, and resources of each; default: one with one CPU.
        dataset_config: Options for sharing the datasets among ranks.
        run_config: The run's name, place and behaviour.
        datasets: Name -> a `dray.data.Dataset`, or data to make one of. `get_dataset_shard` gives
            each rank its share.
        validation_config: The function that `report(validation=...)` runs, and its options.
        metadata: Deprecated; must be None.
        resume_from_checkpoint: Deprecated; must be None.

    Raises:
        ConfigError: An argument is malformed.
        MissingDependencyError: TensorFlow is not installed.

    Example:
        >>> from dray.train import ScalingConfig, report
        >>> from dray.train.tensorflow import TensorflowTrainer
        >>> def train_loop():
        ...     import tensorflow as tf
        ...     strategy = tf.distribute.MultiWorkerMirroredStrategy()
        ...     report({"workers": strategy.num_replicas_in_sync})
        >>> scaling = ScalingConfig(num_workers=2)
        >>> TensorflowTrainer(train_loop, scaling_config=scaling).fit().metrics
        {'workers': 2}
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[[], object] | Callable[[dict[str, Any]], object],
        *,
        train_loop_config: Mapping[str, object] | None = None,
        tensorflow_config: TensorflowConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        dataset_config: DataConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        validation_config: ValidationConfig | None = None,
        metadata: object = None,
        resume_from_checkpoint: object = None,
    ) -> None:
        require("tensorflow", "dray[tensorflow]")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=checked(tensorflow_config, TensorflowConfig, "tensorflow_config"),
            scaling_config=scaling_config,
            run_config=_with_keras_2(run_config or RunConfig()),
            datasets=datasets,
            dataset_config=dataset_config,
            validation_config=validation_config,
            metadata=metadata,
            resume_from_checkpoint=resume_from_checkpoint,
        )


def _with_keras_2(config: RunConfig) -> RunConfig:
    """Return a config whose workers have Keras 2 as `tf.keras`, if it is installed and allowed."""
    if (
        not isinstance(config, RunConfig)
        or _KERAS_2 in {**os.environ, **config.runtime_env.env_vars}
        or importlib.util.find_spec("tf_keras") is None
    ):
        return config
    given = dict(config.worker_runtime_env or {})
    given["env_vars"] = {_KERAS_2: "1", **config.runtime_env.env_vars}
    return dataclasses.replace(config, worker_runtime_env=given)


# The functions below run in the worker.


def _hold_port() -> int:
    """Reserve a port for TensorFlow, which binds it beside this socket (SO_REUSEPORT)."""
    held = current_session("TensorflowTrainer").clean_ups.enter_context(hold_port())
    port: int = held.getsockname()[1]
    return port


def _know_cluster(addresses: Sequence[str], ports: Sequence[int]) -> None:
    """Set the variables that TensorFlow reads when the train function makes a strategy."""
    session = current_session("TensorflowTrainer")
    workers = [host_port(*pair) for pair in zip(addresses, ports, strict=True)]
    direct = ",".join(filter(None, (os.environ.get("no_proxy"), *sorted(set(addresses)))))
    variables = {
        "TF_CONFIG": json.dumps(
            {
                "cluster": {"worker": workers},
                "task": {"type": "worker", "index": session.assignment.rank},
            }
        ),
        "TF_GRPC_REUSE_PORT": "true",  # beside the socket that reserves the port
        "no_grpc_proxy": direct,  # otherwise gRPC connects to the other workers through a proxy
    }
    threads = asked_threads(os.environ)
    if threads and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        variables["TF_NUM_INTRAOP_THREADS"] = str(threads)
    session.clean_ups.callback(set_variables, set_variables(variables))


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """Return a dataset that TensorFlow does not shard among the workers again.

    Args:
        tf_dataset_shard: A `tf.data.Dataset` that has only this worker's part of the data.

    Returns:
        The dataset with automatic sharding turned off, and prefetching on.

    Example:
        >>> import tensorflow as tf
        >>> from dray.train.tensorflow import prepare_dataset_shard
        >>> prepare_dataset_shard(tf.data.Dataset.range(4)).cardinality().numpy().item()
        4
    """
    require("tensorflow", "dray[tensorflow]")
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options).prefetch(tf.data.AUTOTUNE)


attach_getattr(
    __name__, later=("keras",), names={"dray.train.tensorflow.checkpoint": ["TensorflowCheckpoint"]}
)
