"""What only the process engine can break: its fork server, its memory, its machine."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.errors import ConfigError, NodeDiedError, WorkerDiedError
from dray.train import FailureConfig
from dray.util import placement_group, remove_placement_group
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.gates import PATIENCE_S
from tests.support.programs import survivors
from tests.support.train_runs import fit

pytestmark = pytest.mark.usefixtures("process_engine")


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with 300 MiB, which kills what needs more; needs root."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"dray-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / limit).write_text(str(300 << 20))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no control group can be made here: not root, or /sys/fs/cgroup is read-only")


def test_out_of_memory_killer_is_named(storage: Path, small_memory: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 1:
            (small_memory / "cgroup.procs").write_text(str(os.getpid()))
            print("about to hoard", flush=True)
            hoard = []
            while True:
                hoard.append(b"x" * (16 << 20))
        dray.train.collective.barrier()

    with pytest.raises(
        WorkerDiedError, match="the kernel's out-of-memory killer was at work"
    ) as caught:
        fit(train, storage)
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    assert "rank-00001.log" in str(caught.value)


def test_fork_server_killed_and_retry(storage: Path) -> None:
    def train() -> int:
        if not (storage / "killed").exists():
            dray.train.collective.barrier()
            if dray.train.get_context().get_world_rank() == 0:
                (storage / "killed").touch()
                os.kill(os.getppid(), signal.SIGKILL)
            threading.Event().wait()
        return 7

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 7


def test_fork_server_killed_between_runs(storage: Path) -> None:
    server = fit(os.getppid, storage).return_value
    os.kill(server, signal.SIGKILL)
    assert survivors([server]) == []
    assert fit(os.getppid, storage).return_value != server


def test_a_runtime_env_that_this_python_has_already(storage: Path, tmp_path: Path) -> None:
    locked = tmp_path / "requirements.txt"
    locked.write_text("# locked\ncloudpickle>=2 \\\n    --hash=sha256:0\n\npytest # a comment\n")
    environment = {
        "pip": {"packages": str(locked), "pip_check": False},
        "uv": ["rich>=13", "no-such-package; python_version < '3'"],
        "py_modules": [dray, os.path.dirname(dray.__file__)],
        "excludes": [".git"],
        "config": {"setup_timeout_seconds": 600},
    }
    assert fit(lambda: 7, storage, worker_runtime_env=environment).return_value == 7


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"pip": ["no-such-package", "rich<1"]},
            r": no-such-package and rich<1 \(\S+ is installed\)",
        ),
        ({"pip": ["git+https://x"]}, r"\['pip'\] has 'git\+https://x', which is not a requirement"),
        ({"pip": "nowhere.txt"}, r"\['pip'\] names 'nowhere.txt', which cannot be read"),
        ({"uv": 7}, r"\['uv'\] must be a list of packages, a dict or a path, not 7"),
        ({"py_modules": ["/no/such"]}, "asks for: /no/such. Install it here, put modules on the"),
        ({"py_modules": "module"}, r"\['py_modules'\] must be a list of modules and paths"),
        ({"conda": "environment", "pip": ["x-y-z"]}, "the process engine uses .*: conda and x-y-z"),
        ({"working_dir": "s3://bucket/code.zip"}, "is not a directory of this machine"),
    ],
)
def test_runtime_envs_that_need_a_cluster_are_refused(
    storage: Path, environment: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(print, storage, worker_runtime_env=environment)
    assert not storage.exists()


def test_the_sessions_runtime_env_and_the_runs(storage: Path, tmp_path: Path) -> None:
    variables = {"COLOUR": "red", "SHAPE": "round"}
    dray.shutdown()
    dray.init(engine="process", runtime_env={"env_vars": variables, "working_dir": str(tmp_path)})
    try:
        seen = fit(
            lambda: (os.getcwd(), os.environ["COLOUR"], os.environ["SHAPE"]),
            storage,
            workers=1,
            worker_runtime_env={"env_vars": {"SHAPE": "square"}},
        ).return_value
    finally:
        dray.shutdown()
    assert seen == (str(tmp_path), "red", "square")


def test_a_runs_variables_are_there_before_anything_is_imported(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_early.py").write_text("import os; COLOUR = os.environ.get('COLOUR')")
    monkeypatch.syspath_prepend(tmp_path)
    reads_early = importlib.import_module("reads_early")

    def seen(**variables: str) -> Any:
        return fit(
            lambda: (reads_early.COLOUR, os.environ.get("COLOUR"), os.getppid()),
            storage,
            workers=1,
            worker_runtime_env={"env_vars": variables},
        ).return_value

    assert seen()[:2] == (None, None)
    *colours, red_server = seen(COLOUR="red")
    assert colours == ["red", "red"]
    assert seen(COLOUR="red")[2] == red_server
    assert seen(COLOUR="blue")[:2] == ("blue", "blue")
    assert survivors([red_server]) == []
    monkeypatch.setenv("COLOUR", "blue")
    assert seen(COLOUR="blue")[1] == "blue"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "slurm"}, "engine 'slurm' does not exist; there are process, inline and ray"),
        (
            {"address": "10.0.0.1:1", "engine": "process"},
            "the process engine runs on this machine alone",
        ),
        ({"runtime_env": {"conda": "base"}}, "does not have .*: conda"),
        ({"runtime_env": {"envs": {}}}, "runtime_env has no envs"),
    ],
)
def test_sessions_that_are_refused(options: dict[str, Any], message: str) -> None:
    dray.shutdown()
    with pytest.raises(ConfigError, match=message):
        dray.init(**options)
    assert not dray.is_initialized()


def test_a_crash_in_a_group_is_told_as_one() -> None:
    @dray.remote(max_retries=0)
    def crash() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    group = placement_group([{"CPU": 1}])
    within = crash.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    with pytest.raises(WorkerDiedError, match="killed by signal 9") as caught:
        dray.get(within.remote(), timeout=PATIENCE_S)
    assert not isinstance(caught.value, NodeDiedError)
    remove_placement_group(group)
