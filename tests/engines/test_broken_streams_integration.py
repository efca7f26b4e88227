"""Standard output may be anything: nothing that workers print, or dray says, ends a run."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.train
from dray.engines import console
from dray.errors import WorkerDiedError
from dray.train import DataParallelTrainer, RunConfig, RunContext, ScalingConfig, UserCallback
from tests.support.gates import PATIENCE_S
from tests.support.programs import environment, write

pytestmark = pytest.mark.usefixtures("process_engine")


class Raising(io.StringIO):
    """As a Tee whose log file is on a disk that has gone."""

    def write(self, text: str) -> int:
        raise RuntimeError("no such disk")


class OnlyWrites:
    """As many a Tee."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def closed_pipe() -> Any:
    out, into = os.pipe()
    os.close(out)
    return os.fdopen(into, "w")


def closed_terminal() -> Any:
    master, terminal = os.openpty()
    os.close(master)
    return os.fdopen(terminal, "w")


def closed_file() -> Any:
    file = io.StringIO()
    file.close()
    return file


class UnreadPipe(io.TextIOWrapper):
    """A pipe that is full, and that nobody reads."""

    def __init__(self) -> None:
        self.out, into = os.pipe()
        os.set_blocking(into, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(into, b"x" * 4096):
                pass
        os.set_blocking(into, True)
        super().__init__(os.fdopen(into, "wb"))

    def close(self) -> None:
        if not self.closed:
            os.close(self.out)
        super().close()


STREAMS: dict[str, Callable[[], Any]] = {
    "missing": lambda: None,
    "closed pipe": closed_pipe,
    "closed file": closed_file,
    "closed terminal": closed_terminal,
    "full disk": lambda: open("/dev/full", "w"),  # noqa: SIM115
    "unread pipe": UnreadPipe,
    "raises": Raising,
    "only writes": OnlyWrites,
    "no encoding": object,
}


@contextlib.contextmanager
def standard_streams(stream: Any) -> Iterator[None]:
    """Have both standard streams be this one; pytest sets its own before each test's body."""
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = stream
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        with contextlib.suppress(AttributeError, OSError):  # what was not written is written now
            stream.close()


@dray.remote(num_cpus=0.1, max_retries=0)
def talk_and_die() -> None:
    print("loss → 0.1", flush=True)
    print("a warning", file=sys.stderr, flush=True)
    os._exit(3)


def train() -> None:
    print("loss → 0.1")
    print("a warning", file=sys.stderr)
    dray.train.report({"loss": 0.1})


@pytest.mark.parametrize("kind", STREAMS)
def test_tasks_and_runs_go_on(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    stream = STREAMS[kind]()
    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(storage_path=str(tmp_path)),
    )
    with standard_streams(stream):
        for _ in range(2):
            # What it has printed is shown before its end is told, which needs the same thread.
            with pytest.raises(WorkerDiedError, match="status 3"):
                dray.get(talk_and_die.remote(), timeout=PATIENCE_S)
        assert trainer.fit().metrics == {"loss": 0.1}
    if isinstance(stream, OnlyWrites):
        assert ") loss → 0.1\n" in stream.text
        assert "(rank 0) loss → 0.1\n" in stream.text


def test_what_an_encoding_lacks_is_replaced() -> None:
    written = io.BytesIO()
    written.close = lambda: None  # type: ignore[method-assign]
    latin = io.TextIOWrapper(written, encoding="latin-1")
    with standard_streams(latin), pytest.raises(WorkerDiedError, match="status 3"):
        dray.get(talk_and_die.remote(), timeout=PATIENCE_S)
    assert b"loss ? 0.1" in written.getvalue()


def test_a_terminal_that_is_closed_meanwhile_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    master, terminal = os.openpty()

    class CloseTerminal(UserCallback):
        def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
            with contextlib.suppress(OSError):  # it is closed already
                os.close(master)

    with standard_streams(os.fdopen(terminal, "w")):
        trainer = DataParallelTrainer(
            lambda: [train() for _ in range(3)],
            scaling_config=ScalingConfig(resources_per_worker={"CPU": 0.1}),
            run_config=RunConfig(storage_path=str(tmp_path), callbacks=[CloseTerminal()]),
        )
        assert len(trainer.fit().metrics_dataframe) == 3


def test_a_program_without_standard_streams(tmp_path: Path) -> None:
    """As `program <&- >&- 2>&-`: sockets must not get their numbers."""
    script = write(
        tmp_path / "silent.py",
        """
        def train():
            os.system("echo from a shell; echo a warning >&2")
            print("from Python", flush=True)
            return os.getpid()

        @dray.remote
        def task():
            train()
            return 1

        try:
            assert dray.get(task.remote(), timeout=60) == 1
            said = str(fit(train).metrics)
        except BaseException as error:
            said = repr(error)
        with open(sys.argv[1], "w") as file:
            file.write(said)
        """,
    )
    for method in ("fork", "spawn"):
        answer = tmp_path / f"said-{method}"
        subprocess.run(
            [sys.executable, str(script), str(answer)],
            env=environment(tmp_path / method, DRAY_START_METHOD=method),
            preexec_fn=functools.partial(os.closerange, 0, 3),
            timeout=PATIENCE_S,
            check=True,
        )
        assert answer.read_text() == "None"


@pytest.mark.parametrize("opened", [os.pipe, os.openpty])
def test_who_reads_late_holds_nobody_up_and_misses_no_line(
    opened: Callable[[], tuple[int, int]], tmp_path: Path
) -> None:
    """As `program | less`: the program goes on, and ends when all has been read."""
    script = write(
        tmp_path / "talks.py",
        """
        import dray

        def say(text):
            for number in range(2000):
                print(text, number, "." * 80)

        @dray.remote(max_retries=0)
        def talk_and_die():
            say("of a task")
            sys.stdout.flush()
            os._exit(3)

        def train():
            say("of a run")

        print("first")
        try:
            dray.get(talk_and_die.remote(), timeout=60)
        except dray.exceptions.WorkerCrashedError as error:
            print(error, file=sys.stderr)
        fit(train, workers=1)
        dray.shutdown()
        print("read now", file=sys.stderr)
        """,
    )
    out, into = opened()
    with subprocess.Popen(
        [sys.executable, str(script)],
        env=environment(tmp_path / "runs", DRAY_PROGRESS="1"),
        stdout=into,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        os.close(into)
        assert program.stderr is not None
        assert "status 3" in program.stderr.readline()
        assert program.stderr.readline() == "read now\n"
        lines = read_all(out).splitlines()
        assert program.wait(PATIENCE_S) == 0
    assert lines[0] == "first"
    for text in ("of a task", "of a run"):
        numbers = [line.split()[-2] for line in lines if f"{text} " in line]
        assert numbers == [str(number) for number in range(2000)]


def test_a_stream_that_shows_text_elsewhere_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a notebook's, whose descriptor is that of the terminal in which Jupyter runs."""
    _, into = os.pipe()
    os.set_blocking(into, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(into, bytes(4096))

    class Notebook(io.StringIO):
        def fileno(self) -> int:
            return into

    notebook = Notebook()
    monkeypatch.setattr(sys, "stdout", notebook)
    console.Outlet("stdout").write("a line")
    assert notebook.getvalue() == "a line"


def test_an_outlet_is_closed_as_python_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python closes it as it deletes it, which may be after the globals of its module."""
    console.Outlet("stdout").close()
    assert not sys.stdout.closed
    monkeypatch.setattr(console, "sys", None)
    console.Outlet("stdout").close()


def test_what_waits_for_a_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_MOST_HELD", 1000)
    stream = UnreadPipe()
    with standard_streams(stream):
        for number in range(100):
            console.show_lines("stdout", [f"line {number}"])
        with os.fdopen(os.dup(stream.out)) as reader:
            _, *lines, note = read_until("nobody", reader)
    assert 0 < len(lines) < 30  # a string takes less from Python 3.12 on
    assert lines == [f"line {number + 1}\n" for number in range(len(lines))]
    assert note == f"... {99 - len(lines)} more lines were dropped, because nobody read stdout\n"


def read_all(fd: int) -> str:
    """Read to the end, which a terminal tells by an error, and close."""
    data = b""
    with contextlib.suppress(OSError):
        while piece := os.read(fd, 65536):
            data += piece
    os.close(fd)
    return data.decode()


def read_until(text: str, file: Iterable[str]) -> Iterator[str]:
    for line in file:
        yield line
        if text in line:
            return
