"""Plans: what fit() would do, why it cannot, what is nearest; and how long fit() waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import dray
import dray.testing
import dray.train
from dray import host
from dray.errors import InfeasibleError, NodeDiedError
from dray.testing import FakeHost
from dray.train import (
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    StartTimeoutError,
)
from dray.train.jax import JaxTrainer
from dray.train.torch import TorchTrainer
from tests.support.gates import until
from tests.support.holding import hold

GPUS = [
    {"node_id": "a", "num_cpus": 16, "num_gpus": 4, "accelerator_type": "A100"},
    {"node_id": "b", "num_cpus": 16, "num_gpus": 2, "accelerator_type": "V100"},
]


def plan(**scaling: Any) -> Any:
    return TorchTrainer(print, scaling_config=ScalingConfig(**scaling)).plan()


def test_a_plan_that_fits(session: Any) -> None:
    session(*GPUS)
    found = plan(num_workers=3, use_gpu=True, resources_per_worker={"GPU": 2})
    assert found.fits
    assert (found.backend, found.master_address) == ("nccl", "127.0.0.1")
    assert [(w.rank, w.node, w.node_rank, w.local_rank) for w in found.workers] == [
        (0, "a", 0, 0),
        (1, "a", 0, 1),
        (2, "b", 1, 0),
    ]
    assert [w.devices for w in found.workers] == [
        {"GPU": ("0", "1")},
        {"GPU": ("2", "3")},
        {"GPU": ("0", "1")},
    ]
    cores = host.cpu_count()
    assert [w.threads for w in found.workers] == [max(1, cores // 2)] * 2 + [cores]
    text = str(found)
    assert text.startswith(
        "3 workers, 2 GPU each: fits now\n  nccl over lo, rendezvous at 127.0.0.1"
    )
    assert "  rank 1: a, GPU 2,3, " in text
    assert json.loads(json.dumps(found.to_dict()))["workers"][2]["node"] == "b"


def test_nothing_is_started_or_reserved(session: Any) -> None:
    session(*GPUS)
    trainer = TorchTrainer(print, scaling_config=ScalingConfig(num_workers=6, use_gpu=True))
    children = {p.pid for p in psutil.Process().children(recursive=True)}
    free = dray.available_resources()
    assert trainer.plan() == trainer.plan()
    assert dray.available_resources() == free
    assert {p.pid for p in psutil.Process().children(recursive=True)} == children


def test_the_run_is_as_planned(session: Any, storage: Path) -> None:
    session(*GPUS)
    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=5, use_gpu=True),
        run_config=RunConfig(name="run", storage_path=storage),
    )
    planned = trainer.plan()
    trainer.fit()
    events = (storage / "run/events.jsonl").read_text().splitlines()
    (started,) = [e for e in map(json.loads, events) if e["event"] == "workers started"]
    assert [(rank["node"], rank["devices"]) for rank in started["ranks"]] == [
        (w.node, {name: list(ids) for name, ids in w.devices.items()}) for w in planned.workers
    ]


def test_ten_thousand_workers_are_planned_at_once(session: Any) -> None:
    session(*({"num_cpus": 1} for _ in range(10_000)))
    began = time.thread_time()
    assert plan(num_workers=10_000).fits
    assert time.thread_time() - began < 3  # some ten times what it takes


def test_a_plan_that_must_wait(session: Any) -> None:
    session(*GPUS)
    holder = hold(num_gpus=3)
    found = plan(num_workers=4, use_gpu=True)
    assert (found.fits, found.possible) == (False, True)
    assert found.reason == "4 GPU asked, but other work uses some of it."
    assert found.advice == "num_workers=3 would fit now; 4 needs 1 more GPU."
    one_each = plan(num_workers=2, use_gpu=True, resources_per_worker={"GPU": 2})
    assert one_each.nodes == {"a": "1 GPU of 4 GPU free, a worker needs 2 GPU"}
    assert "cannot start now" in str(one_each)
    dray.kill(holder)


def test_a_range_starts_with_what_fits(session: Any, storage: Path) -> None:
    session(*GPUS)
    holder = hold(num_gpus=3)

    def fit(least: int, most: int) -> int:
        def train() -> int:
            return dray.train.get_context().get_world_size()

        return (
            DataParallelTrainer(
                train,
                scaling_config=ScalingConfig(num_workers=(least, most), use_gpu=True),
                run_config=RunConfig(storage_path=storage),
            )
            .fit()
            .return_value
        )

    assert plan(num_workers=(1, 8), use_gpu=True).num_workers == 3
    assert fit(1, 8) == 3
    assert fit(1, 2) == 2
    dray.kill(holder)
    until(lambda: dray.available_resources().get("GPU") == 6)
    assert fit(2, 6) == 6
    with pytest.raises(InfeasibleError, match="7 GPU asked, 6 GPU exist"):
        fit(7, 9)


def test_a_range_without_an_end_is_quick(session: Any) -> None:
    session(*GPUS)
    began = time.thread_time()
    assert plan(num_workers=(1, 10**7)).num_workers == 32
    assert plan(num_workers=(1, 10**7), use_gpu=True).num_workers == 6
    assert time.thread_time() - began < 1


def test_a_range_that_has_waited_takes_what_there_is_then(session: Any, storage: Path) -> None:
    session({"num_cpus": 4, "num_gpus": 3})
    holder = hold(num_gpus=3)
    killed = threading.Timer(0.5, dray.kill, [holder])
    killed.start()
    size = DataParallelTrainer(
        lambda: dray.train.get_context().get_world_size(),
        scaling_config=ScalingConfig(num_workers=(1, 8), use_gpu=True),
        run_config=RunConfig(storage_path=storage),
    ).fit()
    killed.join()
    assert size.return_value == 3


def test_who_gives_up_waiting_holds_up_nobody(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Whoever asks for less stays behind who asked before, but not for longer than that waits."""
    session({"num_cpus": 8, "num_gpus": 2})
    holder = hold(num_gpus=1)
    monkeypatch.setenv("DRAY_PROGRESS", "1")

    def fit(name: str, workers: int) -> Any:
        return DataParallelTrainer(
            lambda: None,
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=True),
            run_config=RunConfig(name=name, storage_path=storage),
        ).fit()

    monkeypatch.setenv("DRAY_START_TIMEOUT_S", "4")
    with ThreadPoolExecutor() as pool:
        two = pool.submit(fit, "two", 2)
        until(lambda: "two: waiting" in capfd.readouterr().err)
        time.sleep(0.5)  # until its patience with those that pass it is over
        one = pool.submit(fit, "one", 1)
        with pytest.raises(StartTimeoutError):
            two.result()
        one.result()
    dray.kill(holder)


OTHER = """
import sys, dray
dray.init(num_cpus=2)

@dray.remote(num_gpus=2)
class Holder:
    def ready(self): return True

holder = Holder.remote()
print(dray.get(holder.ready.remote()), flush=True)
sys.stdin.read()
"""


def test_devices_of_another_program_are_not_planned(storage: Path) -> None:
    dray.shutdown()
    with FakeHost(
        files={f"dev/nvidia{i}": "" for i in range(4)},
        modules={"pynvml": "raise ImportError('not here')"},
    ):
        command = [sys.executable, "-c", OTHER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as other:  # type: ignore[call-overload]
            assert other.stdout.readline() == "True\n"
            dray.init(num_cpus=4)
            found = plan(num_workers=4, use_gpu=True)
            assert (found.fits, found.possible) == (False, True)
            assert found.advice == "num_workers=2 would fit now; 4 needs 2 more GPU."
            assert [w.devices["GPU"] for w in plan(num_workers=2, use_gpu=True).workers] == [
                ("2",),
                ("3",),
            ]
            size = DataParallelTrainer(
                lambda: dray.train.get_context().get_world_size(),
                scaling_config=ScalingConfig(num_workers=(1, 4), use_gpu=True),
                run_config=RunConfig(storage_path=storage),
            ).fit()
            assert size.return_value == 2
            dray.shutdown()
            other.stdin.close()


def test_a_node_that_is_lost(session: Any, storage: Path) -> None:
    """A run of a fixed size fails at once, one of a range goes on with what is left."""
    nodes = [{"node_id": name, "num_cpus": 2} for name in "abc"]

    class Lose(dray.train.UserCallback):
        def after_report(self, run_context: Any, *_: Any) -> None:
            if run_context.attempt == 0:
                dray.testing.kill_node("b")

    def train() -> int:
        world_size = dray.train.get_context().get_world_size()
        dray.train.report({})
        if dray.train.get_checkpoint() is None and world_size == 6:
            threading.Event().wait()  # until its end
        return world_size

    def fit(name: str, workers: Any, **failures: Any) -> Any:
        return DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(
                name=name,
                storage_path=storage,
                callbacks=[Lose()],
                failure_config=FailureConfig(**failures),
            ),
        ).fit()

    session(*nodes)
    assert fit("range", (2, 6)).return_value == 4  # a lost node is no failure of the program
    dray.shutdown()
    session(*nodes)
    with pytest.raises(NodeDiedError, match="because its node b is gone"):
        fit("once", 6, max_failures=9, max_preemption_failures=0)
    dray.shutdown()
    session(*nodes)
    with pytest.raises(InfeasibleError, match="6 CPU asked, 4 CPU exist"):
        fit("fixed", 6)


def test_interfaces_and_threads_of_a_plan(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session(*GPUS, runtime_env={"env_vars": {"NCCL_SOCKET_IFNAME": "ens5"}})
    assert plan(num_workers=2, use_gpu=True).interface == "ens5"
    assert plan(num_workers=2).interface == "lo"
    trainer = TorchTrainer(
        print,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            worker_runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "x", "OMP_NUM_THREADS": "3"}}
        ),
    )
    assert trainer.plan().interface == "x"
    assert [w.threads for w in trainer.plan().workers] == [3, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert [w.threads for w in plan(num_workers=2).workers] == [5, 5]


def test_plans_of_other_trainers(session: Any) -> None:
    session(*GPUS)
    assert JaxTrainer(print).plan().backend == "JAX on cpu"
    gpus = ScalingConfig(num_workers=2, use_gpu=True)
    assert JaxTrainer(print, scaling_config=gpus).plan().backend == "JAX on cuda,cpu"
    assert DataParallelTrainer(print).plan().backend == "no process group"


def test_a_plan_of_one_process() -> None:
    found = plan(num_workers=0)
    assert (found.fits, len(found.workers)) == (True, 1)


def test_a_plan_within_a_task(session: Any) -> None:
    session(*GPUS)

    @dray.remote(num_gpus=1)
    def look() -> Any:
        found = plan(num_workers=6, use_gpu=True)
        return found.fits, found.advice, plan(num_workers=2, use_gpu=True).fits

    fits, advice, small = dray.get(look.remote())
    assert (fits, small) == (False, True)
    assert advice == "num_workers=5 would fit now; 6 needs 1 more GPU."


def test_waiting_ends_in_time_and_says_for_what(
    session: Any, storage: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    session(*GPUS)
    holder = hold(num_gpus=4)
    monkeypatch.setenv("DRAY_START_TIMEOUT_S", "6")  # it is told why after one
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=4, use_gpu=True),
        run_config=RunConfig(storage_path=storage),
    )
    with pytest.raises(StartTimeoutError, match=r"could not start within 6 s: 4 GPU asked") as c:
        trainer.fit()
    assert c.value.seconds == 6
    assert "num_workers=2 would fit now; 4 needs 2 more GPU." in c.value.reason
    told = capfd.readouterr().err
    assert told.count("waiting up to 6 s for resources: 4 GPU asked") == 1

    monkeypatch.setenv("DRAY_START_TIMEOUT_S", "60")
    killed = threading.Timer(1.5, dray.kill, [holder])
    killed.start()
    trainer.fit()
    killed.join()


SCRIPT = """
import sys
import dray
import dray.train
from beside import workers
from dray.train.torch import TorchTrainer

print("what the script prints")
dray.init(nodes=[{"num_cpus": 4, "num_gpus": 2}])
if __name__ == "__main__":
    config = dray.train.ScalingConfig(num_workers=workers(sys.argv), use_gpu=True)
    TorchTrainer(print, scaling_config=config).fit()
    print("never here")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("def workers(argv): return int(argv[1])")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def dray_plan(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dray", "plan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_the_command(script: Path, tmp_path: Path) -> None:
    done = dray_plan(
        str(script), "2", cwd=tmp_path.parent, env={**os.environ, "HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 workers, 1 GPU each: fits now\n")
    assert "what the script prints" in done.stderr
    assert "never here" not in done.stdout + done.stderr
    assert not (tmp_path / "dray_results").exists()

    done = dray_plan("--json", str(script), "3")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["fits"], found["possible"]) == (False, False)
    assert found["advice"] == "num_workers=2 would fit now; 3 needs 1 more GPU."


def test_the_command_and_scripts_that_hide_their_fit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    lines = "import atexit, os, threading, dray, dray.train\n"
    lines += "fit = dray.train.DataParallelTrainer(print).fit\n"
    lines += "atexit.register(print, 'at the end')\nos.system('echo of a shell')\n"
    for ending in (
        "thread = threading.Thread(target=fit); thread.start(); thread.join()",
        "try: fit()\nexcept BaseException: print('caught')\nfit()",
        "trial = dray.remote(lambda: os.system('echo a trial >> trials') or fit())\n"
        "dray.get(trial.remote())",
    ):
        script.write_text(lines + ending)
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = dray_plan("--json", str(script), env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["num_workers"] == 1
        assert "of a shell" in done.stderr
        assert not (tmp_path / "dray_results").exists()
    assert (tmp_path / "trials").read_text() == "a trial\n"


def test_the_command_with_something_else(tmp_path: Path) -> None:
    for missing in (str(tmp_path / "none.py"), "none.py"):
        done = dray_plan(missing)
        assert done.returncode == 2
        assert "none.py" in done.stderr
        assert "Traceback" not in done.stderr
    empty = tmp_path / "empty.py"
    empty.write_text("print('nothing to train')")
    done = dray_plan(str(empty))
    assert done.returncode == 2
    assert "ended without calling fit()" in done.stderr
    empty.write_text("import sys; sys.exit(0)")
    assert dray_plan(str(empty)).returncode == 2
    assert dray_plan(str(tmp_path)).returncode == 2
    empty.write_text("raise ArithmeticError('of the script')")
    done = dray_plan(str(empty))
    assert done.returncode == 1
    assert "ArithmeticError: of the script" in done.stderr
