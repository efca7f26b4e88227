"""Nothing outlives the driver, whatever is killed, and whatever workers have started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

import dray
from dray.errors import WorkerDiedError
from tests.support.gates import until
from tests.support.programs import Program, family, survivors, write

# Every worker starts a Python child that forks (as data loaders do), a program (sleep), one in a
# session of its own, and a daemon, whose own parent has ended.
BUSY = """
    def train():
        import multiprocessing, subprocess
        context = multiprocessing.get_context("fork")
        child = context.Process(target=threading.Event().wait, daemon=True)
        child.start()
        program = subprocess.Popen(["sleep", "1000"])
        apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        subprocess.run(["setsid", "sh", "-c", "sleep 1000 &"], check=True)
        dray.train.collective.barrier()
        if dray.train.get_context().get_world_rank() == 0:
            print("ready", os.getpid(), flush=True)
        threading.Event().wait()

    fit(train)
"""


def is_stopped(pid: int) -> bool:
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Program]:
    script = write(tmp_path / "busy.py", BUSY)
    with Program(script, tmp_path / "runs", DRAY_STOP_GRACE_S="0.2") as program:
        program.wait_for("ready")
        yield program


def roles(driver: int) -> dict[str, list[int]]:
    """Return the processes of a driver by what they are."""
    (server,) = psutil.Process(driver).children()
    workers = server.children()
    return {
        "driver": [driver],
        "server": [server.pid],
        "worker": [w.pid for w in workers],
        "grandchild": [g.pid for w in workers for g in w.children(recursive=True)],
    }


@pytest.mark.parametrize("victim", ["driver", "server", "worker"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_kill_9_leaves_nothing(tmp_path: Path, victim: str, method: str) -> None:
    script = write(tmp_path / "busy.py", BUSY)
    with Program(script, tmp_path / "runs", DRAY_START_METHOD=method) as program:
        program.wait_for("ready")
        everyone = roles(program.process.pid)
        assert len(everyone["worker"]) == 2
        assert len(everyone["grandchild"]) == 8
        os.kill(everyone[victim][0], signal.SIGKILL)
        below = [pid for role in ("worker", "grandchild") for pid in everyone[role]]
        assert survivors(below) == []
        status, output = program.end()
        if victim == "driver":
            assert status == -signal.SIGKILL
        elif victim == "worker":
            assert "rank 0 failed: its process was killed by signal 9" in output
        else:
            assert "its process is gone" in output
        assert survivors(everyone["server"]) == []


@pytest.mark.parametrize("victims", ["server", "driver server"])
def test_kill_9_of_the_server_of_a_worker_that_is_stopped(busy: Program, victims: str) -> None:
    """The system hangs up on a group that loses its parent while one of it is stopped."""
    everyone = roles(busy.process.pid)
    for pid in everyone["worker"]:
        os.kill(pid, signal.SIGSTOP)
        until(partial(is_stopped, pid))
    for victim in victims.split():
        os.kill(everyone[victim][0], signal.SIGKILL)
    assert survivors([*everyone["worker"], *everyone["grandchild"]]) == []


def test_kill_9_of_driver_and_server_at_once(busy: Program) -> None:
    everyone = roles(busy.process.pid)
    for pid in (*everyone["server"], *everyone["driver"]):
        os.kill(pid, signal.SIGKILL)
    assert survivors([*everyone["worker"], *everyone["grandchild"]]) == []


ACTOR = """
    import signal, subprocess

    @dray.remote
    class Starter:
        def start(self):
            subprocess.run(["setsid", "sh", "-c", "sleep 1000 &"], check=True)
            return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

        def beat(self):
            return 1

    dray.init(num_cpus=2)
    starter = Starter.remote()
    dray.get(starter.start.remote())
    assert dray.get(starter.beat.remote()) == 1
    print("ready", flush=True)
    sys.stdin.readline()
    del starter
    print("over", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("victims", ["driver", "server", "worker", "driver server", "nobody"])
def test_what_an_actor_has_started_ends_with_it(tmp_path: Path, victims: str) -> None:
    script = write(tmp_path / "actor.py", ACTOR)
    with Program(script, tmp_path / "runs") as program:
        program.wait_for("ready")
        everyone = roles(program.process.pid)
        assert len(everyone["grandchild"]) == 2  # it lives, and so do they
        for victim in reversed(victims.split()):
            for pid in everyone.get(victim, []):
                os.kill(pid, signal.SIGKILL)
        if victims == "nobody":
            program.say("end it")
            program.wait_for("over")
        assert survivors([*everyone["worker"], *everyone["grandchild"]]) == []


def test_what_a_task_has_started_ends_with_its_worker() -> None:
    """Not with the task: its process goes on, and may have started it for others."""
    dray.shutdown()
    dray.init(num_cpus=1)

    @dray.remote
    def start() -> tuple[int, int]:
        return os.getpid(), subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    @dray.remote(max_retries=0)
    def end() -> None:
        os._exit(3)

    worker, program = dray.get(start.remote())
    assert dray.get(start.options(num_cpus=0.5).remote())[0] == worker
    assert psutil.Process(program).is_running()
    with pytest.raises(WorkerDiedError):
        dray.get(end.remote())
    assert survivors([worker, program]) == []
    dray.shutdown()


def test_kill_9_of_the_driver_while_the_server_imports(tmp_path: Path) -> None:
    script = write(
        tmp_path / "slow.py",
        """
        import dray.train.torch
        dray.train.torch.TorchTrainer(lambda: None)
        print("built", flush=True)
        threading.Event().wait()
        """,
    )
    with Program(script, tmp_path / "runs") as program:
        program.wait_for("built")
        everyone = family(program.process.pid)
        assert len(everyone) == 2
        program.process.kill()
        assert survivors(everyone) == []


def test_kill_15_of_the_driver_leaves_nothing(busy: Program) -> None:
    everyone = family(busy.process.pid)
    busy.process.terminate()
    assert survivors(everyone) == []


def test_a_driver_that_ends_leaves_nothing(tmp_path: Path) -> None:
    script = write(
        tmp_path / "ends.py",
        """
        def train():
            import subprocess
            program = subprocess.Popen(["sleep", "1000"])
            print("started", program.pid, flush=True)

        fit(train, workers=1)
        print("over")
        """,
    )
    with Program(script, tmp_path / "runs") as program:
        pid = int(program.wait_for("started").split()[-1])
        status, output = program.end()
        assert status == 0, output
        assert survivors([pid]) == []


def test_a_driver_that_exits_by_an_error_leaves_nothing(tmp_path: Path) -> None:
    script = write(
        tmp_path / "fails.py",
        """
        class Broken(dray.train.UserCallback):
            def after_report(self, run_context, metrics, checkpoint):
                raise RuntimeError("broken")

        def train():
            print("rank of process", os.getpid(), flush=True)
            dray.train.report({})
            threading.Event().wait()

        fit(train, callbacks=[Broken()])
        """,
    )
    with Program(script, tmp_path / "runs") as program:
        pid = int(program.wait_for("rank of process").split()[-1])
        status, output = program.end()
        assert status == 1
        assert "ControllerError" in output
        assert survivors([pid]) == []


def test_children_of_a_short_lived_thread_live_on(tmp_path: Path) -> None:
    """The kernel's parent-death signal follows the thread that forked, not the process."""
    script = write(
        tmp_path / "thread.py",
        """
        def train():
            import multiprocessing
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            go = context.Event()

            def work():
                go.wait()
                queue.put("alive")

            children = []
            def start():
                children.append(context.Process(target=work))
                children[0].start()

            thread = threading.Thread(target=start)
            thread.start()
            thread.join()
            go.set()
            answer = queue.get(timeout=20)
            children[0].join()
            return answer

        print(fit(train, workers=1).return_value)
        """,
    )
    with Program(script, tmp_path / "runs") as program:
        status, output = program.end()
        assert status == 0, output
        assert output.splitlines()[-1] == "alive"


def test_no_tcp_listener_for_control(busy: Program) -> None:
    for pid in family(busy.process.pid):
        assert [c for c in psutil.Process(pid).net_connections("tcp") if c.status == "LISTEN"] == []


def test_collectives_listen_on_loopback_alone(tmp_path: Path) -> None:
    script = write(
        tmp_path / "torch_run.py",
        """
        import dray.train.torch

        def train():
            import torch
            torch.distributed.all_reduce(torch.ones(1))
            dray.train.collective.barrier()
            if dray.train.get_context().get_world_rank() == 0:
                print("ready", flush=True)
            threading.Event().wait()

        dray.train.torch.TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.1}),
            run_config=RunConfig(storage_path=os.environ["STORAGE"]),
        ).fit()
        """,
    )
    with Program(script, tmp_path / "runs") as program:
        program.wait_for("ready")
        listeners = [
            connection.laddr.ip
            for pid in family(program.process.pid)
            for connection in psutil.Process(pid).net_connections("tcp")
            if connection.status == "LISTEN"
        ]
        assert listeners
        assert set(listeners) == {"127.0.0.1"}
