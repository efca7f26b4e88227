"""What a program with tasks, actors and objects leaves when something is killed: nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dray
from tests.support.gates import PATIENCE_S, Gate
from tests.support.programs import survivors

BUSY = """
import threading
import numpy as np
import dray

dray.init(num_cpus=4)

@dray.remote
def wait(flag):
    import subprocess
    subprocess.Popen(["sleep", "1000"])
    print("task", flush=True)
    threading.Event().wait()

@dray.remote
class Spinner:
    def spin(self):
        print("actor", flush=True)
        while True:
            pass

kept = dray.put(np.ones(50 << 20, np.uint8))
tasks = [wait.remote(kept) for _ in range(2)]
spinner = Spinner.remote()
spinner.spin.remote()
threading.Event().wait()
"""


def shared_memory(pid: int) -> os.stat_result:
    """The memory that a driver shares with its workers."""
    files = list(Path(f"/proc/{pid}/fd").iterdir())
    return next(f.stat() for f in files if "dray-objects" in os.readlink(f))


def holders_of(memory: os.stat_result) -> list[int]:
    """The processes that have a file open or mapped."""
    mapped = re.compile(
        rf" {memory.st_ino} +/memfd:dray-objects"
    )  # other devices' inodes may be alike
    holders = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            files = list(Path(f"/proc/{process.pid}/fd").iterdir())
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            opened = any(os.path.samestat(f.stat(), memory) for f in files if f.exists())
            if opened or mapped.search(maps):
                holders.append(process.pid)
    return holders


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[psutil.Popen]:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    with psutil.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            process.stdout.readline()
        yield process
        if process.is_running():
            process.kill()


@pytest.mark.parametrize("victims", [("driver",), ("driver", "server"), ("server", "driver")])
def test_kill_9_leaves_no_process_and_no_shared_memory(
    busy: psutil.Popen, victims: tuple[str, ...]
) -> None:
    (server,) = busy.children()
    below = [process.pid for process in server.children(recursive=True)]
    assert len(below) == 5  # three workers, two programs
    assert busy.pid in holders_of(memory := shared_memory(busy.pid))
    for victim in victims:
        os.kill({"driver": busy.pid, "server": server.pid}[victim], signal.SIGKILL)
    busy.wait()
    assert survivors([server.pid, *below]) == []
    assert holders_of(memory) == []  # and so the kernel has freed it


@pytest.mark.usefixtures("process_engine")
def test_work_goes_on_when_the_fork_server_is_killed(tmp_path: Path) -> None:
    @dray.remote(max_retries=1)
    def pid(gate: Gate) -> int:
        gate.pass_through()
        return os.getpid()

    warm = Gate(tmp_path, "warm")
    idle = [pid.remote(warm) for _ in range(3)]  # all die with the server, and none is to be used
    warm.heard(3)
    warm.open()
    dray.get(idle, timeout=PATIENCE_S)
    gate = Gate(tmp_path)
    ref = pid.remote(gate)
    first = psutil.Process(int(gate.heard()[0]))
    first.parent().kill()
    second = int(gate.heard()[0])
    gate.open()
    assert dray.get(ref, timeout=PATIENCE_S) == second != first.pid
    gate.close()
    warm.close()


@pytest.mark.usefixtures("process_engine")
def test_a_fork_of_the_driver_has_no_session() -> None:
    dray.get(dray.put(1))
    pid = os.fork()
    if not pid:
        os._exit(0 if not dray.is_initialized() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert dray.get(dray.put(2)) == 2
