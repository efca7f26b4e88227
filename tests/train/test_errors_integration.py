"""Bad input and bad luck: each gets an error that says what happened, where, and what to do."""

from __future__ import annotations

import functools
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import (
    ConfigError,
    InfeasibleError,
    MissingDependencyError,
    SerializationError,
    StorageError,
    WorkerDiedError,
)
from dray.train import (
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from tests.support.gates import MOMENT_S, PATIENCE_S, refused_at_once, until
from tests.support.programs import run, survivors, write
from tests.support.train_runs import fit

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True),
]


def test_what_cannot_be_pickled_is_named(storage: Path) -> None:
    lock = threading.Lock()

    def inner() -> None:
        print(lock)

    def train() -> None:
        inner()

    with pytest.raises(SerializationError) as caught:
        fit(train, storage)
    assert str(caught.value).startswith(
        "the train function 'train' cannot be sent to another process: the train function 'train' "
        "-> variable 'inner' -> variable 'lock' (a _thread.lock) cannot be pickled"
    )
    assert not storage.exists()  # nothing was made


def test_config_that_cannot_be_pickled_is_named(storage: Path) -> None:
    trainer = DataParallelTrainer(
        lambda config: None,
        train_loop_config={"model": {"lock": threading.Lock()}},
        run_config=RunConfig(storage_path=storage),
    )
    with pytest.raises(SerializationError, match="key 'model' -> key 'lock'"):
        trainer.fit()


def test_more_cpus_than_there_are(storage: Path, engine: str) -> None:
    trainer = DataParallelTrainer(
        print,
        scaling_config=ScalingConfig(num_workers=9),
        run_config=RunConfig(storage_path=storage),
    )
    error = refused_at_once(InfeasibleError, trainer.fit, "9 CPU asked, 8 CPU exist")
    assert error.asked["CPU"] == 9
    assert error.available["CPU"] == (4 if engine == "ray" else 8)  # the nearest node's
    assert not storage.exists()


def test_resources_that_nothing_offers(storage: Path) -> None:
    for scaling in (
        ScalingConfig(resources_per_worker={"unicorn": 1}),
        ScalingConfig(use_gpu=True),
    ):
        trainer = DataParallelTrainer(
            print, scaling_config=scaling, run_config=RunConfig(storage_path=storage)
        )
        with pytest.raises(InfeasibleError, match=r"no node offers (unicorn|GPU)"):
            trainer.fit()


def test_a_busy_machine_is_waited_for(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_started = threading.Event()
    second_waits = threading.Event()

    class Watch(io.StringIO):
        def write(self, text: str) -> int:
            if "second: waiting up to 600 s for resources: 5 CPU asked" in text:
                second_waits.set()
            return super().write(text)

    class First(dray.train.UserCallback):
        def after_report(self, *_: Any) -> None:
            first_started.set()
            assert second_waits.wait(PATIENCE_S)

    def run_one(name: str, *callbacks: Any) -> None:
        DataParallelTrainer(
            lambda: dray.train.report({}),
            scaling_config=ScalingConfig(num_workers=5),
            run_config=RunConfig(name=name, storage_path=storage, callbacks=callbacks),
        ).fit()

    monkeypatch.setenv("DRAY_PROGRESS", "1")
    monkeypatch.setattr(sys, "stderr", Watch())
    first = threading.Thread(target=run_one, args=("first", First()))
    first.start()
    assert first_started.wait(PATIENCE_S)
    run_one("second")
    first.join()
    until(lambda: dray.available_resources().get("CPU") == 8)  # Ray tells it with a delay


def test_storage_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match=r"cannot be written.*storage_path"):
        fit(print, blocked / "below")


def test_report_with_something_else_than_a_checkpoint(storage: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be a dray\.train\.Checkpoint, not '/tmp'"):
        fit(lambda: dray.train.report({}, checkpoint="/tmp"), storage)  # type: ignore[arg-type]


def test_report_with_a_directory_that_is_gone(storage: Path) -> None:
    def train() -> None:
        dray.train.report({}, checkpoint=dray.train.Checkpoint("/nowhere"))

    with pytest.raises(StorageError, match="/nowhere is not there"):
        fit(train, storage)


def test_torch_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from dray.train.torch import TorchTrainer

    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # without a spec
    TorchTrainer(print)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'torch>=2\.4'"):
        TorchTrainer(print)


def fail_on_rank_one(action: Any) -> None:
    """Rank 1 does something terrible while the others wait for it."""
    if dray.train.get_context().get_world_rank() == 1:
        print("last words", flush=True)
        action()
    dray.train.collective.barrier()


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("action", "cause", "exitcode"),
    [
        (segfault, "was killed by signal 11 (SIGSEGV); native code touched memory", -11),
        (functools.partial(os._exit, 5), "exited with status 5 in the middle of its work", 5),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by signal 9 (SIGKILL)", -9),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was killed by signal 15 (SIGTERM)", -15),
    ],
)
def test_worker_that_dies(storage: Path, action: Any, cause: str, exitcode: int) -> None:
    with pytest.raises(WorkerGroupError) as caught:
        fit(functools.partial(fail_on_rank_one, action), storage, workers=3)
    error = caught.value
    assert f"rank 1 failed: its process {cause}" in str(error)
    assert error.rank == 1
    assert isinstance(error.worker_failures[1], WorkerDiedError)
    assert error.worker_failures[1].exitcode == exitcode
    assert list(error.worker_failures) == [1]  # the others did nothing wrong
    assert error.log_path is not None
    log = Path(error.log_path).read_text()
    assert "last words" in log
    if exitcode == -11:
        assert "its output has the Python stack" in str(error)
        assert "in segfault" in log


def test_a_failure_says_what_to_do(storage: Path) -> None:
    def train() -> None:
        if not dray.train.get_checkpoint():
            with tempfile.TemporaryDirectory() as directory:
                dray.train.report({}, checkpoint=dray.train.Checkpoint(directory))
        with open(os.devnull) as sys.stdin:  # pytest has its own
            input("go on?")

    with pytest.raises(EOFError) as caught:
        DataParallelTrainer(train, run_config=RunConfig(storage_path=storage)).fit()
    *_, advice, _, again = str(caught.value).splitlines()
    assert advice.startswith("workers have no terminal: ScalingConfig(num_workers=0) runs the")
    (run_path,) = storage.iterdir()
    resuming = f"RunConfig(name={run_path.name!r}) resumes from checkpoint_000000"
    assert again.startswith(f"the run is in {run_path}; {resuming};")


def test_a_slow_download_is_no_wait_for_other_ranks(storage: Path) -> None:
    def download() -> None:
        raise TimeoutError("the read timed out")

    with pytest.raises(WorkerGroupError, match="rank 1 failed: TimeoutError") as caught:
        fit(functools.partial(fail_on_rank_one, download), storage)
    assert "it waited for" not in str(caught.value)


def test_a_rank_that_dies_while_it_stages_leaves_nothing_in_the_way(storage: Path) -> None:
    """Rank 1 has a file that takes long to copy, and dies when rank 0 has staged its own."""

    def train() -> None:
        context = dray.train.get_context()
        rank, first = context.get_world_rank(), not (storage / "died").exists()
        with tempfile.TemporaryDirectory(dir=storage) as directory:
            Path(directory, f"rank-{rank}").write_text(str(rank))
            if first and rank == 1:
                with open(Path(directory, "zeros"), "wb") as file:
                    file.truncate(1 << 38)

                def die() -> None:
                    while not list(storage.glob("run/.staging-*/rank-0")):
                        threading.Event().wait(0.01)
                    (storage / "died").touch()
                    os._exit(9)

                threading.Thread(target=die).start()
            dray.train.report({}, checkpoint=dray.train.Checkpoint(directory))

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.checkpoint is not None
    assert sorted(os.listdir(result.checkpoint.path)) == [".dray.json", "rank-0", "rank-1"]


def test_the_first_error_comes_first_and_the_rest_is_folded(storage: Path, engine: str) -> None:
    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        Path(storage, f"pid-{rank}").write_text(str(os.getpid()))
        dray.train.collective.barrier()
        if rank == 2:
            print("about to fail", flush=True)  # without a word, there is no log to be named
            raise LookupError("the cause")
        dray.train.collective.barrier()

    with pytest.raises(LookupError) as caught:
        fit(train, storage, workers=3)
    text = str(caught.value)
    assert text.startswith(
        "rank 2 failed: LookupError: the cause\nTraceback (most recent call last)"
    )
    assert "in train\n    raise LookupError" in text
    assert "src/dray" not in text  # dray's own frames are not the user's business
    assert "rank-00002.log" in text
    pids = [int(p.read_text()) for p in storage.glob("pid-*")]
    assert survivors(pids, within_s=MOMENT_S[engine]) == []


def test_a_traceback_is_shown_once(tmp_path: Path, variables: dict[str, str]) -> None:
    script = write(
        tmp_path / "script.py",
        """
        def train():
            raise ValueError("bad batch")

        fit(train)
        """,
    )
    done = run(script, tmp_path / "runs", **variables, DRAY_PROGRESS="0")
    assert done.returncode == 1
    assert done.stderr.count('raise ValueError("bad batch")') == 1
    inline = run(script, tmp_path / "runs", DRAY_PROGRESS="0", DRAY_ENGINE="inline")
    assert inline.stderr.count('raise ValueError("bad batch")') == 1


def test_error_that_does_not_pickle_keeps_its_type(storage: Path) -> None:
    class Picky(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("picky")
            self.lock = threading.Lock()

    def train() -> None:
        raise Picky(1, 2)

    with pytest.raises(Picky, match="picky"):
        fit(train, storage)


def test_import_error_in_the_worker_names_the_module(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("def train(): pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        from only_here import train  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="No module named 'only_here'"):
        fit(train, storage)


def test_ranks_at_different_collectives(storage: Path) -> None:
    def train() -> None:
        if dray.train.get_context().get_world_rank() == 0:
            dray.train.collective.barrier()
        else:
            dray.train.collective.broadcast_from_rank_zero(1)

    with pytest.raises(dray.train.TrainingFailedError, match="different collectives"):
        fit(train, storage)


def test_killed_worker_and_retry(storage: Path) -> None:
    def train() -> int:
        context = dray.train.get_context()
        marker = storage / "killed"
        if context.get_world_rank() == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dray.train.collective.barrier()
        return 7

    result = fit(train, storage, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == 7
    assert sorted(os.listdir(storage / "run/logs")) == ["attempt-000", "attempt-001"]


def test_no_output_left_unread_when_the_reader_goes(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """`python train.py | head -1` must not break the run."""
    script = write(
        tmp_path / "script.py",
        """
        def train():
            for i in range(2000):
                print("line", i)
            return 1

        if fit(train, workers=1).return_value == 1:
            open(os.path.join(os.environ["STORAGE"], "done"), "w").close()
        os._exit(0)  # Python itself complains about the closed pipe at a normal exit
        """,
    )
    command = f"{sys.executable} {script} | head -1"
    done = subprocess.run(
        command,
        shell=True,
        env={**os.environ, **variables, "STORAGE": str(tmp_path / "runs"), "DRAY_PROGRESS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (tmp_path / "runs/done").exists(), done.stderr
