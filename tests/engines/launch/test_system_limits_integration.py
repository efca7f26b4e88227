"""Out of processes or open files: what asked for one fails, with the limit's name, and no other."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import dray
from dray.errors import EngineError, WorkerDiedError
from tests.support.gates import PATIENCE_S, until
from tests.support.programs import environment, write

PROCESSES = """
import resource, time
from dray.errors import EngineError, WorkerDiedError

dray.init(num_cpus=64)

@dray.remote(num_cpus=0.01)
class Actor:
    def pid(self):
        return os.getpid()

@dray.remote(num_cpus=0.01)
def task():
    return 1

over, results = os.path.join(os.environ["STORAGE"], "over"), []

def train():
    while not os.path.exists(over):
        dray.train.report({"well": 1})
        time.sleep(0.05)

thread = threading.Thread(target=lambda: results.append(fit(train, workers=2).metrics), daemon=True)
thread.start()
good = Actor.remote()
dray.get(good.pid.remote())
limit = int(os.environ["LIMIT"])
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # the fork server's as well
    if os.stat(f"/proc/{pid}").st_uid == os.getuid():
        resource.prlimit(pid, resource.RLIMIT_NPROC, (limit, limit))

def end(actors):
    pids = dray.get([actor.pid.remote() for actor in actors])
    for actor in actors:
        dray.kill(actor)
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.01)

actors, idle = [], threading.Event()
for _ in range(limit):
    actor = Actor.remote()
    try:
        dray.get(actor.pid.remote(), timeout=60)
    except WorkerDiedError:  # there was room for the process, and none for its thread
        threading.Thread(target=idle.wait, daemon=True).start()
    except EngineError as error:
        print("refused:", error, flush=True)
        break
    else:
        actors.append(actor)
print("put:", dray.get(dray.put(bytes(9 << 20))) == bytes(9 << 20), flush=True)  # by threads
print("good:", dray.get(good.pid.remote(), timeout=60) > 0, flush=True)
os.environ["STORAGE"] += "/other"
idle.set()
end([actors.pop(), actors.pop()])  # a run needs threads here as well
try:
    fit(train, workers=8)
except dray.train.TrainingFailedError as error:
    print("training refused:", str(error).replace(chr(10), " "), flush=True)
end(actors)
print("again:", dray.get(task.remote(), timeout=60), flush=True)
open(over, "w").close()
thread.join()
print("results:", results, flush=True)
"""


@pytest.mark.skipif(
    os.getuid() == 0 and not shutil.which("setpriv"), reason="no limit of processes holds root"
)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_more_processes(tmp_path: Path, method: str) -> None:
    script = write(tmp_path / "processes.py", PROCESSES)
    storage = tmp_path / "runs"
    storage.mkdir()
    command, limit = [sys.executable, str(script)], 36
    if os.getuid() == 0:  # whom no limit of processes holds
        user, files = 50_000 + os.getpid() % 10_000, "-all,+dac_override,+dac_read_search"
        command[:0] = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        command[4:4] = [f"--inh-caps={files}", f"--ambient-caps={files}"]
    else:
        mine = [p for p in psutil.process_iter() if p.uids().real == os.getuid()]
        limit += sum(process.num_threads() for process in mine)
    done = subprocess.run(
        command,
        env=environment(storage, DRAY_START_METHOD=method, DRAY_PROGRESS="0", LIMIT=str(limit)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "actor Actor has no worker process: " in said["refused"]
    assert f"{limit} processes and threads (ulimit -u)" in said["refused"]
    assert said["put"] == said["good"] == "True"
    whose = ("its process could not be started", "can't start new thread: the limit of processes")
    assert any(text in said["training refused"] for text in whose)
    assert said["again"] == "1"
    assert said["results"] == "[{'well': 1}]"


@dray.remote(num_cpus=0)
class Actor:
    def open_files(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


@pytest.mark.usefixtures("process_engine")
def test_an_actor_costs_three_descriptors() -> None:
    dray.shutdown()  # no worker of another test ends meanwhile
    dray.init(num_cpus=1)
    first = Actor.remote()
    dray.get(first.open_files.remote())
    (server,) = [p for p in psutil.Process().children() if p.children()]

    def descriptors() -> tuple[int, int]:
        return psutil.Process().num_fds(), server.num_fds()

    before = descriptors()
    actors = [Actor.remote() for _ in range(5)]
    dray.get([actor.open_files.remote() for actor in actors])
    expected = before[0] + 5 * 3, before[1] + 5 * 1
    until(lambda: descriptors() == expected)  # what is on its way to a worker is closed soon


@dray.remote(num_cpus=0, max_retries=0)
def task(ends: bool = False) -> None:
    if ends:
        os._exit(1)


@pytest.mark.usefixtures("process_engine")
def test_no_thread_for_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    dray.shutdown()
    dray.init(num_cpus=1)
    start = threading.Thread.start
    refused = {"dray-reader", "dray-hub"}

    def refuse(thread: threading.Thread) -> None:
        if thread.name in refused:
            refused.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    while refused:
        with pytest.raises(EngineError, match="the limit of processes and threads"):
            task.remote()
    with pytest.raises(WorkerDiedError):  # of whose end it is heard
        dray.get(task.remote(ends=True), timeout=PATIENCE_S)


@pytest.mark.usefixtures("process_engine")
def test_no_descriptor_for_the_first_task(monkeypatch: pytest.MonkeyPatch) -> None:
    dray.shutdown()
    dray.init(num_cpus=1)

    def refuse(*args: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(EngineError, match=r"\(ulimit -n\)"):
        task.remote()
    monkeypatch.undo()
    dray.get(task.remote())


OPEN_FILES = """
import resource
from dray.errors import EngineError

def limit():
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

@dray.remote(num_cpus=0)
class Actor:
    def limit(self):
        return limit()

dray.init(num_cpus=1)
actors = []
for _ in range(30):
    actors.append(Actor.remote())
print("of workers:", {*dray.get([actor.limit.remote() for actor in actors])}, flush=True)
print("raised:", limit() > 64, flush=True)
dray.shutdown()
print("afterwards:", limit(), flush=True)
"""


def said_within(open_files: tuple[int, int], code: str, path: Path, *before: str) -> dict[str, str]:
    """Run a program with a limit of open files, and perhaps a command before it."""
    done = subprocess.run(
        [*before, sys.executable, str(write(path / "files.py", code))],
        env=environment(path),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, open_files),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_the_soft_limit_of_open_files_is_raised_and_set_back(tmp_path: Path) -> None:
    said = said_within((64, 1024), OPEN_FILES, tmp_path)
    assert said == {"of workers": "{64}", "raised": "True", "afterwards": "64"}


MANY_AT_ONCE = """
import signal
import psutil

@dray.remote(num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()

dray.init(num_cpus=1)
first = Actor.remote()
server = psutil.Process(dray.get(first.pid.remote())).parent()
server.suspend()  # as one that imports what workers need
try:
    actors = [Actor.remote() for _ in range(95)]  # six descriptors each
    calls = [actor.pid.remote() for actor in actors]
    dray.kill(actors.pop())
    unheard = calls.pop()
finally:
    server.resume()
pids = dray.get([first.pid.remote(), *calls], timeout=60)
print("made:", len(set(pids)), flush=True)
try:
    dray.get(unheard, timeout=60)
except dray.exceptions.RayActorError as error:
    print("killed:", type(error).__name__, flush=True)
while len(server.children()) > len(pids):
    threading.Event().wait(0.01)
print("serves:", dray.get(Actor.remote().pid.remote(), timeout=60) > 0, flush=True)
"""


@pytest.mark.skipif(
    os.getuid() == 0 and not shutil.which("setpriv"), reason="no limit of descriptors holds root"
)
@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_more_actors_at_once_than_descriptors_may_be_on_their_way(tmp_path: Path) -> None:
    bound = ("--inh-caps=-all", "--bounding-set=-sys_resource,-sys_admin")
    as_user = () if os.getuid() else ("setpriv", *bound)
    said = said_within((512, 512), MANY_AT_ONCE, tmp_path, *as_user)
    assert said == {"made": "95", "killed": "ActorDiedError", "serves": "True"}
