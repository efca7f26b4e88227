"""JAX on several processes: one program over all workers, its platform, and how it ends.

JAX is never used in this process: it would have JAX's threads, and warn of every fork from then on.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import dray.data
import dray.train
from dray.errors import ConfigError, MissingDependencyError
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig, WorkerGroupError
from dray.train.jax import JaxConfig, JaxTrainer
from tests.support.programs import run, write

pytest.importorskip("jaxlib", reason="JAX is not installed")

several = pytest.mark.usefixtures("engine")
on_both = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)


def fit(
    function: Any,
    storage: Path,
    workers: int = 2,
    env: dict[str, str] | None = None,
    **options: Any,
) -> Result:
    run_config = RunConfig(
        name="run", storage_path=storage, worker_runtime_env={"env_vars": env or {}}
    )
    return JaxTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=run_config,
        **options,
    ).fit()


@several
@on_both
def test_workers_are_one_program(storage: Path) -> None:
    def train() -> Any:
        import jax
        import numpy as np
        from jax.experimental import multihost_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        rank = jax.process_index()
        assert rank == dray.train.get_context().get_world_rank()
        assert len(jax.local_devices()) * jax.process_count() == len(jax.devices())
        gathered = multihost_utils.process_allgather(np.array([rank, 10 * rank]))

        rows = NamedSharding(Mesh(np.array(jax.devices()), ("rows",)), PartitionSpec("rows"))
        mine = np.full((3, 2), rank + 1.0)
        array = jax.make_array_from_process_local_data(rows, mine)
        assert array.shape == (6, 2)
        total = jax.jit(lambda a: (a * a).sum())(array)
        return jax.process_count(), jax.device_count(), gathered.tolist(), float(total)

    processes, devices, gathered, total = fit(train, storage).return_value
    assert (processes, devices) == (2, 2)
    assert gathered == [[0, 0], [1, 10]]
    assert total == 6 * 1 + 6 * 4


@several
@on_both
def test_data_parallel_training_with_reports_and_checkpoints(storage: Path) -> None:
    def train(config: dict[str, Any]) -> Any:
        import tempfile

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.experimental import multihost_utils

        rank, size = jax.process_index(), jax.process_count()
        x = np.arange(config["rows"], dtype=np.float32)[rank::size] / config["rows"]
        y = 3 * x + 1

        @jax.jit  # type: ignore[untyped-decorator]
        def gradient(w: Any) -> Any:
            return jax.value_and_grad(lambda w: jnp.mean((w[0] * x + w[1] - y) ** 2))(w)

        w = jnp.array([float(rank), 0.0])  # broadcast makes them alike
        w = jnp.asarray(multihost_utils.broadcast_one_to_all(w))
        for step in range(config["steps"]):
            loss, g = gradient(w)
            w = w - 0.5 * multihost_utils.process_allgather(g).mean(axis=0)
            last = step == config["steps"] - 1
            if not last:
                dray.train.report({"loss": float(loss)})
                continue
            with tempfile.TemporaryDirectory() as directory:
                np.save(f"{directory}/w-{rank}.npy", w)
                checkpoint = Checkpoint.from_directory(directory)
                dray.train.report({"loss": float(loss)}, checkpoint=checkpoint)

    result = fit(train, storage, train_loop_config={"rows": 64, "steps": 200})
    assert result.metrics is not None
    assert result.metrics["loss"] < 0.01
    assert result.checkpoint is not None

    import numpy as np

    path = result.checkpoint.path
    weights = [np.load(f"{path}/w-{rank}.npy") for rank in range(2)]
    assert weights[0].tolist() == weights[1].tolist()
    # What one process makes of all rows.
    x = np.arange(64) / 64
    w = np.zeros(2)
    for _ in range(200):
        error = w[0] * x + w[1] - (3 * x + 1)
        w -= 0.5 * np.array([2 * (error * x).mean(), 2 * error.mean()])
    assert weights[0] == pytest.approx(w, abs=1e-3)


@several
@on_both
def test_a_function_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> Any:
        import jax

        return jax.process_count(), jax.default_backend(), float(jax.numpy.arange(4).sum())

    monkeypatch.setenv("HOME", str(tmp_path))
    assert JaxTrainer(train).fit().return_value == (1, "cpu", 6.0)


@several
@on_both
def test_a_function_that_leaves_jax_alone_ends_at_once(storage: Path) -> None:
    ended = fit(lambda: time.monotonic(), storage).return_value  # the same clock in all processes
    assert time.monotonic() - ended < 20


@several
@on_both
def test_a_function_may_end_the_program_itself(storage: Path) -> None:
    def train() -> bool:
        import jax

        jax.distributed.shutdown()
        return True

    assert fit(train, storage).return_value


@several
@on_both
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failing_rank_ends_the_run_with_its_own_error(storage: Path, failing: int) -> None:
    def train() -> None:
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        multihost_utils.process_allgather(np.ones(1))
        if jax.process_index() == failing:
            (storage / "failed").touch()
            raise ArithmeticError("of my own")
        multihost_utils.process_allgather(np.ones(1))  # the other one never comes

    with pytest.raises(ArithmeticError, match=rf"^rank {failing} failed: ArithmeticError: of my"):
        fit(train, storage)
    failed = (storage / "failed").stat().st_mtime
    assert time.time() - failed < 20  # JAX itself would wait for 100 s


@several
@on_both
@pytest.mark.parametrize("failing", [0, 1])
def test_after_a_rank_has_died_a_new_program_is_formed(storage: Path, failing: int) -> None:
    def train() -> float:
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        multihost_utils.process_allgather(np.ones(1))
        marker = storage / "died"
        if not marker.exists():
            if jax.process_index() == failing:
                marker.touch()
                os._exit(9)
            multihost_utils.process_allgather(np.ones(1))
        return float(multihost_utils.process_allgather(np.ones(1)).sum())

    trainer = JaxTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=storage, failure_config=FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()
    assert result.return_value == 2
    events = map(json.loads, (storage / "run" / "events.jsonl").read_text().splitlines())
    assert failing in [event["rank"] for event in events if event["event"] == "worker failed"]


@several
@on_both
def test_variables_of_the_user_win_though_jax_is_imported_already(storage: Path) -> None:
    def train() -> Any:
        import jax

        return os.environ["JAX_PLATFORMS"], jax.config.jax_platforms, jax.config.jax_enable_x64

    assert fit(train, storage).return_value == ("cpu", "cpu", False)
    env = {"JAX_PLATFORMS": "", "JAX_ENABLE_X64": "1"}
    assert fit(train, storage, env=env).return_value == ("", "", True)


@several
@on_both
def test_a_platform_that_the_user_asks_for_in_vain_fails_the_run(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> None:
        import jax

        jax.devices()

    monkeypatch.setenv("JAX_PLATFORMS", "pigeon")  # in the driver's environment
    with pytest.raises(WorkerGroupError, match="'pigeon' is not in the list of known backends"):
        fit(train, storage, workers=1)


@several
@on_both
def test_proxies_do_not_come_between_workers(storage: Path) -> None:
    def train() -> Any:
        import jax

        return jax.process_count(), os.environ["http_proxy"]

    env = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    config = JaxConfig(timeout_s=20)
    processes, proxy = fit(train, storage, env=env, jax_config=config).return_value
    assert (processes, proxy) == (2, env["http_proxy"])


@several
@on_both
def test_workers_listen_at_their_nodes_address_only(storage: Path) -> None:
    def train() -> Any:
        import jax
        import psutil
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("all listen")
        listening = [
            connection.laddr.ip.removeprefix("::ffff:")
            for connection in psutil.Process().net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        ]
        multihost_utils.sync_global_devices("all have looked")
        return sorted(listening), jax.process_index()

    listening, rank = fit(train, storage).return_value
    assert rank == 0
    address = dray.nodes()[0]["NodeManagerAddress"]
    assert listening.count(address) >= 2  # the coordinator and the collectives
    if address == "127.0.0.1":
        assert set(listening) == {address}


@pytest.mark.usefixtures("process_engine")
def test_a_second_fit_takes_a_fraction_of_an_import(storage: Path) -> None:
    def train() -> float:
        import jax
        import numpy as np
        from jax.experimental import multihost_utils

        return float(multihost_utils.process_allgather(np.ones(1) * jax.process_index()).sum())

    assert fit(train, storage / "first").return_value == 1
    times = []
    for number in range(3):
        began = time.monotonic()
        assert fit(train, storage / str(number)).return_value == 1
        times.append(time.monotonic() - began)
    assert min(times) < 2


SEED = """
import dray.train
from dray.train import ScalingConfig
from dray.train.v2.jax import JaxTrainer


def train_func():
    import jax
    devices = jax.devices()
    dray.train.report({"num_devices": len(devices)})

trainer = JaxTrainer(
    train_func,
    scaling_config=ScalingConfig(
        num_workers=1,
    )
)
print(trainer.fit().metrics)
"""


@several
@on_both
def test_the_program_of_the_page(tmp_path: Path, variables: dict[str, str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(SEED)
    done = run(program, tmp_path, HOME=str(tmp_path), **variables)
    assert done.returncode == 0, done.stderr
    assert "{'num_devices': 1}" in done.stdout


USED = """
import jax
import jax.numpy as jnp
from dray.train.jax import JaxTrainer

jax.config.update("jax_platforms", "cpu")
weights = jnp.arange(4.0)  # the driver has a backend now, and its threads

@jax.jit
def total(x):
    return (weights * x).sum()

def train():
    return jax.process_count(), float(total(2.0))

result = JaxTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.environ["STORAGE"]),
).fit()
print("returned", result.return_value, float(total(1.0)))
"""


@several
@on_both
def test_jax_may_be_in_use_in_the_driver(tmp_path: Path, variables: dict[str, str]) -> None:
    done = run(write(tmp_path / "program.py", USED), tmp_path, **variables)
    assert "returned (2, 12.0) 6.0" in done.stdout, done.stderr
    assert "os.fork() was called" not in done.stderr + done.stdout


HERE = """
import jax
from dray.train.jax import JaxTrainer

jax.config.update("jax_enable_x64", True)

def train():
    return os.getpid() == driver, "JAX_PLATFORMS" in os.environ, str(jax.numpy.ones(1).dtype)

driver = os.getpid()
result = JaxTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=0),
    run_config=RunConfig(storage_path=os.environ["STORAGE"]),
).fit()
print("returned", result.return_value)
"""


def test_in_this_process_jax_is_as_the_user_left_it(tmp_path: Path) -> None:
    done = run(write(tmp_path / "program.py", HERE), tmp_path)
    assert "returned (True, False, 'float64')" in done.stdout, done.stderr


def test_bad_jax_configs() -> None:
    with pytest.raises(ConfigError, match="timeout_s must be a number of seconds, more than 0"):
        JaxConfig(timeout_s=0)
    with pytest.raises(ConfigError, match="shutdown_timeout_s must be a number of seconds"):
        JaxConfig(shutdown_timeout_s=-1)
    with pytest.raises(ConfigError, match="use_tpu=True and use_gpu=True exclude each other"):
        JaxConfig(use_tpu=True, use_gpu=True)
    with pytest.raises(ConfigError, match="must be a JaxConfig"):
        JaxTrainer(print, jax_config="gpu")  # type: ignore[arg-type]


def test_without_jax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'jax>=0\.4\.36'"):
        JaxTrainer(print)


@several
@on_both
def test_a_batch_of_a_dataset_holds_the_rows_of_all_processes(storage: Path) -> None:
    def train() -> list[Any]:
        import jax

        from dray.data.collate_fn import ArrowBatchCollateFn

        class Doubled(ArrowBatchCollateFn):
            def __call__(self, batch: Any) -> Any:
                return 2 * batch["id"].to_numpy()

        class Uneven(ArrowBatchCollateFn):
            def __call__(self, batch: Any) -> Any:
                return batch["id"].to_numpy()[: 2 * (1 + jax.process_index())]

        def made(name: str, **options: Any) -> list[Any]:
            shard = dray.train.get_dataset_shard(name)
            batches = list(shard.iter_jax_batches(batch_size=4, **options))
            arrays = [batch["id"] if isinstance(batch, dict) else batch for batch in batches]
            assert all(len(array.sharding.device_set) == 4 for array in arrays)
            return [(array.shape[0], int(jax.jit(lambda x: x.sum())(array))) for array in arrays]

        with pytest.raises(ConfigError, match="a batch of 1 rows must be evenly divisible"):
            made("odd")
        with pytest.raises(ConfigError, match=r"batch_size=3 must be evenly divisible by .* .2."):
            dray.train.get_dataset_shard("even").iter_jax_batches(batch_size=3)
        with pytest.raises(ConfigError, match="processes have batches of 2, 4 rows"):
            made("even", collate_fn=Uneven(), synchronize_batches=True)
        return [
            made("even"),
            made("odd", paddings=0),
            made("odd", drop_last=True),
            made("even", collate_fn=Doubled(), synchronize_batches=True),
        ]

    datasets = {"even": dray.data.range(12), "odd": dray.data.range(11)}
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    result = fit(train, storage, env=devices, datasets=datasets)
    assert result.return_value == [
        [(8, 28), (4, 38)],
        [(8, 28), (8, 17)],
        [(8, 28)],
        [(8, 56), (4, 76)],
    ]
