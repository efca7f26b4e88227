"""PyTorch on several processes: the process group, models, threads."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import dray.train
import dray.train.torch
from dray.errors import ConfigError
from dray.train import (
    Checkpoint,
    RunConfig,
    ScalingConfig,
    UserCallback,
    WorkerGroupError,
)
from dray.train.torch import TorchConfig, TorchTrainer, prepare_model
from tests.support.programs import run, write
from tests.support.torch_runs import fit_workers as fit
from tests.support.torch_runs import gather

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True),
]


def test_process_group_and_the_environment_contract(storage: Path) -> None:
    def train() -> Any:
        from torch import distributed

        total = torch.ones(1) * (distributed.get_rank() + 1)
        distributed.all_reduce(total)
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
        assert os.environ["ACCELERATE_TORCH_DEVICE"] == "cpu"
        assert os.environ["ACCELERATE_USE_CPU"] == "true"
        return (
            total.item(),
            distributed.get_backend(),
            gather([os.environ[name] for name in names]),
            int(os.environ["MASTER_PORT"]) > 0,
        )

    total, backend, variables, has_port = fit(train, storage).return_value
    assert total == 3
    assert backend == "gloo"
    address = dray.nodes()[0]["NodeManagerAddress"]
    assert variables == [[str(r), "2", str(r), "2", "0", address] for r in range(2)]
    assert has_port


def test_code_written_for_torchrun_forms_its_own_group(storage: Path) -> None:
    def train() -> float:
        from torch import distributed

        distributed.destroy_process_group()
        distributed.init_process_group("gloo")  # env://, as a torchrun script has it
        total = torch.ones(1)
        distributed.all_reduce(total)
        return total.item()

    assert fit(train, storage).return_value == 2


def test_a_function_may_destroy_its_group_while_it_has_a_model(storage: Path) -> None:
    def train() -> None:
        model = prepare_model(torch.nn.Linear(4, 1))
        for _ in range(8):
            model(torch.ones(4, 4)).sum().backward()
        torch.distributed.destroy_process_group()

    for number in range(8):  # without care, every fifth never ends
        fit(train, storage / str(number))


def test_backend_and_timeout_are_taken(storage: Path) -> None:
    def train() -> None:
        rank = torch.distributed.get_rank()
        if rank == 0:
            torch.distributed.all_reduce(torch.ones(1))  # the other one never comes
        else:
            dray.train.collective.barrier()

    with pytest.raises(WorkerGroupError, match=r"rank 0 failed: RuntimeError.*[Tt]imed out"):
        fit(train, storage, torch_config=TorchConfig(backend="gloo", timeout_s=5))


@pytest.mark.parametrize("init_method", ["env", "tcp"])
def test_either_init_method_meets_at_a_store_of_rank_0(storage: Path, init_method: str) -> None:
    def train() -> bytes:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = torch.distributed.TCPStore(address, port, is_master=False)
        if torch.distributed.get_rank() == 1:
            store.set("said", "by rank 1")
        said: bytes = store.get("said")
        torch.distributed.barrier()  # the store is rank 0's, and ends with it
        return said

    config = TorchConfig(init_method=init_method)
    assert fit(train, storage, torch_config=config).return_value == b"by rank 1"


def test_bad_torch_configs() -> None:
    with pytest.raises(ConfigError, match="'env' or 'tcp', not 'file'"):
        TorchConfig(init_method="file")
    with pytest.raises(ConfigError, match="more than 0, not 0"):
        TorchConfig(timeout_s=0)
    with pytest.raises(ConfigError, match="must be a TorchConfig"):
        TorchTrainer(print, torch_config="gloo")  # type: ignore[arg-type]


def test_backend_that_does_not_exist_fails_the_run(storage: Path) -> None:
    with pytest.raises(WorkerGroupError, match=r"rank . failed: .*carrier-pigeon"):
        fit(print, storage, torch_config=TorchConfig(backend="carrier-pigeon"))


def test_cores_are_shared_among_workers(storage: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    threads = lambda: (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])  # noqa: E731
    expected = max(1, cores // 2)
    assert fit(threads, storage).return_value == (expected, str(expected))
    run_config = RunConfig(
        storage_path=storage, worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "3"}}
    )
    result = TorchTrainer(
        threads, scaling_config=ScalingConfig(num_workers=2), run_config=run_config
    ).fit()
    assert result.return_value == (3, "3")


def test_retry_forms_a_new_group(storage: Path) -> None:
    def train() -> float:
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        marker = storage / "failed"
        if not marker.exists():
            torch.distributed.barrier()
            marker.touch()
            os._exit(9) if torch.distributed.get_rank() else torch.distributed.barrier()
        return total.item()

    result = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=storage, failure_config=dray.train.FailureConfig(max_failures=1)
        ),
    ).fit()
    assert result.return_value == 2


def test_a_dead_rank_is_the_cause_though_its_peer_fails_too(storage: Path) -> None:
    def train() -> None:
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 1:
            os._exit(9)
        torch.distributed.all_reduce(torch.ones(1))

    with pytest.raises(WorkerGroupError, match=r"^rank 1 failed: its process (exited|ended)"):
        fit(train, storage)


def test_inline_has_a_group_of_one(storage: Path) -> None:
    def train() -> Any:
        model = prepare_model(torch.nn.Linear(2, 2))
        return torch.distributed.get_world_size(), type(model).__name__, os.environ["MASTER_ADDR"]

    for _ in range(2):  # the group of the first run is gone when the second starts
        assert fit(train, storage, workers=0).return_value == (1, "Linear", "127.0.0.1")
    assert not torch.distributed.is_initialized()
    assert "MASTER_ADDR" not in os.environ


def test_inline_leaves_no_group_behind_however_it_ends(storage: Path) -> None:
    """The user's own process group comes after, and is made as always."""

    def train() -> None:
        raise LookupError("half way")

    before = open_sockets()
    with pytest.raises(LookupError):
        fit(train, storage, workers=0)
    assert not torch.distributed.is_initialized()
    threads = [Path(f"/proc/self/task/{tid}/comm") for tid in os.listdir("/proc/self/task")]
    assert "pt_gloo_runloop\n" not in [comm.read_text() for comm in threads if comm.exists()]
    with pytest.raises(WorkerGroupError, match="carrier-pigeon"):
        fit(print, storage, workers=0, torch_config=TorchConfig(backend="carrier-pigeon"))
    assert open_sockets() == before


def open_sockets() -> int:
    """Return at how many ports this process listens."""
    gc.collect()  # errors hold frames, and these hold stores
    listening = psutil.Process().net_connections("tcp")
    return sum(connection.status == psutil.CONN_LISTEN for connection in listening)


def test_inline_uses_a_group_of_the_users_and_lets_it_be(storage: Path, tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mine = torch.distributed.group.WORLD
        before = open_sockets()
        assert fit(lambda: torch.distributed.group.WORLD is mine, storage, workers=0).return_value
        assert torch.distributed.group.WORLD is mine
        assert open_sockets() == before
    finally:
        torch.distributed.destroy_process_group()


def test_a_group_that_does_not_end_is_not_waited_for(
    storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def train() -> int:
        torch.distributed.destroy_process_group = threading.Event().wait
        return 3

    monkeypatch.setenv("DRAY_PROGRESS", "1")
    monkeypatch.setenv("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "0.5")
    assert fit(train, storage).return_value == 3
    assert "rank 0 failed to shut down cleanly: TimeoutError" in capfd.readouterr().err


# What a script's own class is pickled as, in a worker and then on the driver: by its name.
WRAPPED = """
    import functools, pickle
    from decorators import logged

    class Net:
        pass

    def loop(steps):
        return pickle.dumps([Net(), loop])

    class Loop:
        def __call__(self):
            return pickle.dumps([Net(), self])

    class Logged:
        def __init__(self, function):
            functools.update_wrapper(self, function)

        def __call__(self, config):
            return self.__wrapped__(config)

    @logged
    def decorated():
        assert not hasattr(sys.modules["__main__"], "OF_THE_DECORATOR")
        return pickle.dumps([Net(), decorated])

    partial = functools.partial(functools.partial(loop), 3)
    for function in (partial, Loop(), decorated, Logged(loop), functools.partial(Loop())):
        net, _ = pickle.loads(fit(function).return_value)
        assert type(net) is Net
    print("all of them")
"""
DECORATORS = """
import functools

OF_THE_DECORATOR = 1

def logged(function):
    @functools.wraps(function)
    def wrapper():
        assert OF_THE_DECORATOR
        return function()
    return wrapper
"""


def test_wrapped_train_functions_save_the_scripts_classes(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    (tmp_path / "decorators.py").write_text(DECORATORS)
    done = run(write(tmp_path / "script.py", WRAPPED), tmp_path / "runs", **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all of them"


def test_ddp_trains_one_model_on_all_ranks(storage: Path) -> None:
    def train() -> Any:
        torch.manual_seed(torch.distributed.get_rank())  # different weights, different data
        model = prepare_model(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.randn(8, 4)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        weights = gather(model.module.weight.tolist())
        return type(model).__name__, weights[0] == weights[1]

    assert fit(train, storage).return_value == ("DistributedDataParallel", True)


def test_variables_that_torch_reads_at_its_import(storage: Path) -> None:
    def train() -> str:
        return str(torch.distributed.get_debug_level())

    def level(**variables: str) -> Any:
        return (
            TorchTrainer(
                train,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(
                    storage_path=storage, worker_runtime_env={"env_vars": variables}
                ),
            )
            .fit()
            .return_value
        )

    assert level() == "DebugLevel.OFF"
    assert level(TORCH_DISTRIBUTED_DEBUG="DETAIL") == "DebugLevel.DETAIL"


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        (True, "rank 1 had returned already; every rank must make the same collective calls"),
        (False, "it waited for rank 1; the log may show where"),
    ],
)
def test_a_collective_that_times_out_names_the_missing_rank(
    storage: Path, returns: bool, said: str
) -> None:
    def train() -> None:
        import threading

        rank = torch.distributed.get_rank()
        torch.distributed.barrier()
        if rank == 1 and returns:
            return
        if rank == 1:
            threading.Event().wait()
        torch.distributed.all_reduce(torch.ones(1))

    began = time.monotonic()
    with pytest.raises(WorkerGroupError, match=r"rank 0 failed: RuntimeError.*imed out") as caught:
        fit(train, storage, torch_config=TorchConfig(timeout_s=5))
    assert time.monotonic() - began < 90  # the default is 1800 s
    assert said in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, "30", None, True, float("inf"), float("nan")])
def test_timeouts_are_seconds(timeout: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s must be a number of seconds, more than 0"):
        TorchConfig(timeout_s=timeout)
    with pytest.raises(ConfigError, match="backend must be a name"):
        TorchConfig(backend=3)  # type: ignore[arg-type]


def test_prepare_model_options(storage: Path) -> None:
    def train() -> Any:
        plain = prepare_model(torch.nn.Linear(1, 1), parallel_strategy=None)
        tuned = prepare_model(
            torch.nn.Linear(1, 1),
            move_to_device=torch.device("cpu"),
            parallel_strategy_kwargs={"find_unused_parameters": True},
        )
        devices = dray.train.torch.get_devices()
        with pytest.raises(ConfigError, match="'ddp', 'fsdp' or None, not 'zero'"):
            prepare_model(torch.nn.Linear(1, 1), parallel_strategy="zero")
        return type(plain).__name__, tuned.find_unused_parameters, str(devices)

    plain, unused, devices = fit(train, storage).return_value
    assert plain == "Linear"
    assert unused is True
    assert devices == "[device(type='cpu')]"


def test_enable_reproducibility(storage: Path) -> None:
    def train() -> Any:
        import random

        import numpy

        dray.train.torch.enable_reproducibility(5)
        return (
            torch.rand(1).item(),
            random.random(),
            float(numpy.random.rand()),
            torch.are_deterministic_algorithms_enabled(),
        )

    first = fit(train, storage).return_value
    assert first == fit(train, storage).return_value
    assert first[-1] is True


def test_workers_do_not_share_one_random_state(storage: Path) -> None:
    """Workers are forks of one server; a fresh process each would have its own numpy state."""

    def train() -> Any:
        import random

        import numpy

        return gather([float(numpy.random.rand()), random.random()])

    first, second = fit(train, storage).return_value
    assert first[0] != second[0]
    assert first[1] != second[1]


class StopsAt(UserCallback):
    """Stops a run at a report."""

    def __init__(self, number: int) -> None:
        self.number = number

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        if metrics[0]["number"] == self.number:
            run_context.stop()


def test_ranks_that_wait_for_each_other_in_collectives_stop_at_the_same_report(
    engine_name: str, storage: Path
) -> None:
    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        for number in itertools.count():
            torch.distributed.all_reduce(torch.ones(1))
            with dray.train.checkpoint_dir() as directory:
                mine = Checkpoint(directory) if rank == 0 else None
                Path(directory, "model").touch()
                dray.train.report({"number": number}, mine)

    for number in range(1 if engine_name == "ray" else 10):
        began = time.monotonic()
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=storage, callbacks=[StopsAt(number)]),
        ).fit()
        assert time.monotonic() - began < 30  # half of DRAY_CONCLUDE_GRACE_S


def test_a_script_shows_its_errors_as_before_after_a_run_in_its_own_process(storage: Path) -> None:
    before = sys.excepthook
    fit(lambda: None, storage, workers=0)
    assert sys.excepthook is before
