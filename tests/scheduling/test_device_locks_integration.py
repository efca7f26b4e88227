"""Two drivers on one machine: no physical device is given out twice, and none is lost."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.errors import ConfigError
from dray.scheduling.device_locks import holders
from dray.testing import FakeHost
from dray.train import DataParallelTrainer, RunConfig, RunContext, ScalingConfig, UserCallback

GPUS = {f"dev/nvidia{i}": "" for i in range(2)}

OTHER_DRIVER = """
import sys, dray
dray.init(num_cpus=4)

@dray.remote(num_cpus=0)
class Holder:
    def ids(self):
        return dray.get_runtime_context().get_accelerator_ids()["GPU"]

held = [Holder.options(num_gpus=float(amount)).remote() for amount in sys.argv[1:]]
print(*[i for holder in held for i in dray.get(holder.ids.remote())], flush=True)
sys.stdin.read()
"""


# Runs a program in a PID namespace of its own, as a container has, and ends with it.
CONTAINER = ("unshare", "-Urpf", "--mount-proc", "--kill-child=KILL")


class Other:
    """Another driver that holds GPUs until it is told to end."""

    def __init__(self, *amounts: float, within: Sequence[str] = ()) -> None:
        command = [*within, sys.executable, "-c", OTHER_DRIVER, *map(str, amounts)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.ids = self.process.stdout.readline().split()

    def end(self) -> None:
        self.process.communicate("", timeout=30)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=30)


@pytest.fixture
def drivers() -> Iterator[Any]:
    """Start other drivers, and end those that are left."""
    started: list[Other] = []

    def start(*amounts: float, within: Sequence[str] = ()) -> Other:
        started.append(Other(*amounts, within=within))
        return started[-1]

    yield start
    for other in started:
        if other.process.poll() is None:
            other.kill()


@pytest.fixture
def host() -> Iterator[None]:
    dray.shutdown()
    with FakeHost(files=GPUS, modules={"pynvml": "raise ImportError('not here')"}):
        yield
        dray.shutdown()


@dray.remote(num_cpus=0, num_gpus=1)
def ids() -> list[str]:
    return dray.get_runtime_context().get_accelerator_ids()["GPU"]


def test_a_driver_takes_what_the_other_leaves(host: None, drivers: Any) -> None:
    other = drivers(1)
    dray.init(num_cpus=4)
    assert other.ids == ["0"]
    assert dray.cluster_resources()["GPU"] == 2
    assert dray.get([ids.remote() for _ in range(3)], timeout=30) == [["1"]] * 3


@pytest.mark.parametrize("end", ["end", "kill"])
def test_who_waits_goes_on_when_the_other_driver_ends(host: None, drivers: Any, end: str) -> None:
    other = drivers(1, 0.5, 0.5)
    assert other.ids == ["0", "1", "1"]
    dray.init(num_cpus=4)
    both = ids.options(num_gpus=2).remote()
    ready, _ = dray.wait([both], timeout=0.5)
    assert not ready
    assert holders(["nvidia-0", "nvidia-1"]).keys() == {"nvidia-0", "nvidia-1"}
    assert holders(["nvidia-0"])["nvidia-0"].pid == other.process.pid
    getattr(other, end)()
    assert dray.get(both, timeout=60) == ["0", "1"]


def test_who_waits_goes_on_when_a_driver_in_another_container_is_killed(
    host: None, drivers: Any
) -> None:
    if subprocess.call([*CONTAINER, "true"], stderr=subprocess.DEVNULL) != 0:
        pytest.skip("this machine lets nobody make PID namespaces")
    other = drivers(1, within=CONTAINER)
    assert other.ids == ["0"]
    dray.init(num_cpus=4)
    both = ids.options(num_gpus=2).remote()
    ready, _ = dray.wait([both], timeout=0.5)
    assert not ready
    other.kill()
    assert dray.get(both, timeout=20) == ["0", "1"]


def test_who_waits_goes_on_when_an_owner_that_says_nothing_is_gone(host: None) -> None:
    dray.init(num_cpus=4)
    assert dray.get(ids.options(num_gpus=2).remote()) == ["0", "1"]
    with Path(os.environ["DRAY_CLAIMS"], "nvidia-0").open("r+") as file:
        file.truncate()
        fcntl.flock(file, fcntl.LOCK_EX)
        both = ids.options(num_gpus=2).remote()
        ready, _ = dray.wait([both], timeout=0.5)
        assert not ready
    assert dray.get(both, timeout=20) == ["0", "1"]


def test_who_waits_goes_on_when_the_other_driver_lets_go(host: None, drivers: Any) -> None:
    dray.init(num_cpus=4)
    assert dray.get(ids.options(num_gpus=2).remote()) == ["0", "1"]
    other = drivers(2)  # nobody holds anything between tasks
    assert other.ids == ["0", "1"]
    waiting = ids.remote()
    ready, _ = dray.wait([waiting], timeout=0.3)
    assert not ready
    other.end()
    assert dray.get(waiting, timeout=60) == ["0"]


def test_a_run_that_grows_holds_what_it_has_until_its_end(host: None, storage: Path) -> None:
    dray.init(num_cpus=4)
    both = ids.options(num_gpus=2).remote
    names = ["nvidia-0", "nvidia-1"]

    @dray.remote(num_cpus=0, num_gpus=2)
    class Holder:
        def ready(self) -> bool:
            return True

    holder = Holder.remote()
    dray.get(holder.ready.remote())

    class Waits(UserCallback):
        def before_run(self, run_context: RunContext) -> None:
            threading.Timer(0.5, dray.kill, [holder]).start()

    def train() -> tuple[int, list[str]]:
        return dray.train.get_context().get_world_size(), sorted(holders(names))

    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=(1, 2), use_gpu=True),
        run_config=RunConfig(storage_path=str(storage), callbacks=[Waits()]),
    )
    assert trainer.fit().return_value == (2, names)
    assert holders(names) == {}
    assert dray.get(both()) == ["0", "1"]


def test_three_drivers_share_two_devices_in_turns(host: None, tmp_path: Path) -> None:
    """Every task writes its device's name where another one would see that it is not alone."""
    program = f"""
import os, dray
dray.init(num_cpus=4)

@dray.remote(num_cpus=0, num_gpus=1)
def alone():
    device, = dray.get_runtime_context().get_accelerator_ids()["GPU"]
    path = os.path.join({str(tmp_path)!r}, device)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    os.unlink(path)

dray.get([alone.remote() for _ in range(30)])
dray.shutdown()
"""
    drivers = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for driver in drivers:
        _, errors = driver.communicate(timeout=60)
        assert driver.returncode == 0, errors


def test_device_locks_can_be_turned_off(
    host: None, drivers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers(1)
    monkeypatch.setenv("DRAY_CLAIMS", "0")
    dray.init(num_cpus=4)
    assert dray.get(ids.remote(), timeout=60) == ["0"]


def test_devices_that_are_only_declared_are_not_locked() -> None:
    dray.shutdown()
    with FakeHost():
        dray.init(num_gpus=2, num_cpus=4)
        assert dray.get(ids.remote(), timeout=60) == ["0"]
        assert not Path(os.environ["DRAY_CLAIMS"]).exists()
        dray.shutdown()


def test_a_directory_that_cannot_be_used_is_told_at_the_start(
    host: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    said = {"none/claims": "No such file", "link": "not a directory"}
    if os.getuid() == 0:
        (tmp_path / "stranger's").mkdir()
        (tmp_path / "stranger's").chmod(0o777)
        os.chown(tmp_path / "stranger's", 65533, 65533)
        said["stranger's"] = "it belongs to user 65533, and lets others remove the files"
    for name, why in said.items():
        monkeypatch.setenv("DRAY_CLAIMS", str(tmp_path / name))
        with pytest.raises(ConfigError, match=f"{why}.* Set DRAY_CLAIMS"):
            dray.init()


def test_nothing_that_a_locked_file_says_ends_a_run(host: None) -> None:
    dray.init(num_cpus=4)
    assert dray.get(ids.options(num_gpus=2).remote()) == ["0", "1"]
    path = Path(os.environ["DRAY_CLAIMS"], "nvidia-0")
    for said in ("", "{}", "[1]", "null", '{"pid": 99999999999999999999}', "[" * 4000, "\0", "é"):
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(said)
            file.flush()
            assert dray.get(ids.remote(), timeout=60) == ["1"], said
            assert holders(["nvidia-0"])
        os.utime(path)
    assert dray.get(ids.options(num_gpus=2).remote(), timeout=60) == ["0", "1"]


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "directory", "nobody's"])
def test_what_cannot_be_locked_counts_as_taken(host: None, kind: str, storage: Path) -> None:
    dray.init(num_cpus=4)
    assert dray.get(ids.options(num_gpus=2).remote()) == ["0", "1"]
    path = Path(os.environ["DRAY_CLAIMS"], "nvidia-0")
    if kind == "nobody's":  # which can be locked, as long as it is not opened to be made
        if os.getuid() == 0:
            os.chown(path, 65534, 65534)
        assert dray.get(ids.options(num_gpus=2).remote(), timeout=60) == ["0", "1"]
        return
    path.unlink()
    precious = storage / "precious"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("data")
    placed: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to("/etc/hostname"),
        "hard link": lambda: path.hardlink_to(precious),
        "pipe": lambda: os.mkfifo(path),
        "directory": path.mkdir,
    }
    placed[kind]()
    assert dray.get(ids.remote(), timeout=60) == ["1"]
    trainer = DataParallelTrainer(
        int,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(storage_path=str(storage)),
    )
    assert f"GPU 0 by somebody, for {path}" in trainer.plan().why
    waiting = ids.options(num_gpus=2).remote()
    assert precious.read_text() == "data"
    path.rmdir() if kind == "directory" else path.unlink()
    assert dray.get(waiting, timeout=60) == ["0", "1"]


READER = """
import dray
from dray.train import DataParallelTrainer, ScalingConfig

dray.init(num_cpus=1)
scaling = ScalingConfig(num_workers=1, use_gpu=True)
print(DataParallelTrainer(int, scaling_config=scaling).plan().why)
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that every user can reach, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="dray-", dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.mark.skipif(
    os.getuid() == 0 and not shutil.which("setpriv"), reason="root may write everything"
)
def test_what_can_only_be_read_counts_as_taken(open_to_all: Path) -> None:
    """As the file of a user whose program was killed before it let the others write to it."""
    claims, host = open_to_all / "claims", open_to_all / "host"
    claims.mkdir()
    claims.chmod(0o1777)
    (host / "dev").mkdir(parents=True)
    (host / "dev" / "nvidia0").touch()
    path = claims / "nvidia-0"
    path.touch(0o444)
    command = [sys.executable, "-c", READER]
    if os.getuid() == 0:
        user, files = 50_000 + os.getpid() % 10_000, "-all,+dac_read_search"
        command[:0] = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        command[4:4] = [f"--inh-caps={files}", f"--ambient-caps={files}"]
    done = subprocess.run(
        command,
        env={**os.environ, "DRAY_CLAIMS": str(claims), "DRAY_HOST_ROOT": str(host)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    owner = pwd.getpwuid(os.getuid()).pw_name
    said = f"GPU 0 by somebody, for {path}, which is {owner}'s, cannot be locked: it can only be"
    assert said in done.stdout, done.stdout + done.stderr


def test_who_waits_is_told_for_whom(host: None, drivers: Any, storage: Path) -> None:
    other = drivers(2)
    dray.init(num_cpus=4)
    trainer = DataParallelTrainer(
        int,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(storage_path=str(storage)),
    )
    user = pwd.getpwuid(os.getuid()).pw_name
    assert f"GPU 0 by pid {other.process.pid} of {user}" in trainer.plan().why


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_other_users_can_lock_the_files(host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(os, "chmod", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dray.init(num_cpus=4)
    dray.init(num_cpus=4)
    dray.get(ids.remote())
    directory = Path(os.environ["DRAY_CLAIMS"])
    assert stat.S_IMODE(directory.stat().st_mode) == 0o1777
    assert stat.S_IMODE((directory / "nvidia-0").stat().st_mode) == 0o666


def test_status_shows_who_holds_what(host: None, drivers: Any) -> None:
    other = drivers(1)
    dray.init(num_cpus=4)
    dray.get(ids.remote(), timeout=30)
    from dray import session

    status: Any = session.current_runtime().status()
    (node,) = asdict(status)["nodes"]
    zero, one = node["devices"]
    assert zero == {"resource": "GPU", "id": "0", "free": 0, "held_by": other.process.pid}
    assert (one["id"], one["held_by"]) == ("1", None)
