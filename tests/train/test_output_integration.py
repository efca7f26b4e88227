"""What a run shows while it runs: on a terminal, in a notebook, in a log file."""

from __future__ import annotations

import fcntl
import os
import pty
import queue
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dray.settings import Settings
from dray.train.run.output import progress
from dray.train.run.output.line_dedup import LineDeduplicator
from dray.train.run.output.screens import Screen
from tests.support.programs import environment, run, write

# Two ranks with nested bars each, which stop half way until the test has looked.
BARS = """
from tqdm import tqdm

def train():
    rank = dray.train.get_context().get_world_rank()
    print("hello", flush=True)
    outer = tqdm(total=2, desc=f"outer {rank}", mininterval=0)
    for step in range(2):
        inner = tqdm(total=2, desc=f"inner {rank}", mininterval=0, leave=False)
        inner.update()
        if step == 1:
            open(os.environ["GATE"]).close()
        inner.update()
        inner.close()
        outer.update()
        tqdm.write(f"\\x1b[31mred {step} of {rank}", file=sys.stderr)
        dray.train.report({"step": step, "said": "\\x1b[2J"})
    outer.close()
"""


class Terminal:
    """A terminal of 100 columns in which a program runs."""

    def __init__(self, script: Path, storage: Path, **extra: str) -> None:
        pyte = pytest.importorskip("pyte")
        self.screen = pyte.HistoryScreen(100, 20, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 100, 0, 0))
        variables = {k: v for k, v in environment(storage, **extra).items() if k != "COLUMNS"}
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            env={**variables, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read(self) -> bool:
        """Take what comes next; return False at the end."""
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # nobody has the other end any more
            data = b""
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    @property
    def rows(self) -> list[str]:
        return [row for row in map(str.rstrip, self.screen.display) if row]

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def end(self) -> list[str]:
        while self.read():
            pass
        self._process.wait()
        history = ["".join(line[x].data for x in range(100)) for line in self.screen.history.top]
        return [row for row in map(str.rstrip, [*history, *self.screen.display]) if row]


def test_nested_bars_of_two_ranks_are_live_on_a_terminal_and_never_garble_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tqdm")
    os.mkfifo(tmp_path / "gate")
    script = write(
        tmp_path / "script.py",
        BARS
        + """
class Says(dray.train.UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        print("a callback says", metrics[0]["step"])

fit(train, callbacks=[Says()])
""",
    )
    bars = [f"(rank {rank}) {bar}:  50%" for rank in (0, 1) for bar in ("outer", "inner")]
    bars = [bar.replace(":", f" {bar[6]}:") for bar in bars]
    with Terminal(script, tmp_path / "runs", GATE=str(tmp_path / "gate")) as terminal:
        # While they run: each bar once, in the order of ranks, and the state of the run below them.
        state, rows = re.compile(r"run: RUNNING \d+ s, report 0: step=0"), [""]
        while not (
            state.match(rows[-1]) and [row[: len(bars[0])] for row in rows if "50%" in row] == bars
        ):
            assert terminal.read(), terminal.raw
            rows = terminal.rows or [""]
        gate = os.open(tmp_path / "gate", os.O_RDWR)
        shown = terminal.end()
        os.close(gate)
    # In the end: nothing but whole lines is left.
    assert sorted(row for row in shown if "red" in row) == sorted(
        f"(rank {rank}) red {step} of {rank}" for rank in (0, 1) for step in (0, 1)
    )
    assert [row for row in shown if "callback" in row] == [
        f"a callback says {step}" for step in (0, 1)
    ]
    assert [row for row in shown if "%" in row and "100%" not in row] == []
    assert len([row for row in shown if "100%" in row]) == 2
    assert "FINISHED in" in shown[-1] + shown[-2]
    log = (tmp_path / "runs/run/logs/attempt-000/rank-00000.log").read_bytes()
    assert b"\x1b[A" in log
    assert b"\router 0:" in log


def test_a_log_file_has_whole_lines_and_hardly_any_status(tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    (tmp_path / "gate").touch()
    code = (
        BARS
        + """
fit(train, workers=4)
"""
    )
    script = write(tmp_path / "script.py", code)
    done = run(script, tmp_path / "runs", GATE=str(tmp_path / "gate"), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum("RUNNING" in line for line in lines) == 1  # of the first report; then each minute
    (placed,) = [line for line in lines if "pid" in line]
    assert re.fullmatch(r"run: (rank \d pid \d+(, )?){4} on this machine", placed), placed
    (repeated,) = [line for line in lines if "[repeated" in line]
    assert re.match(
        r"\(rank \d\) hello \[repeated 3x across ranks (\d, \d and \d|\d-\d)\]", repeated
    )
    assert re.findall(r"\x1b\[[^m]*[^0-9;m]|[\r\b]", done.stdout + done.stderr) == []
    assert done.stderr.count("100%|") == 4
    assert all("\x1b[0m" in line for line in done.stderr.splitlines() if "red" in line)

    code = code.replace(
        "workers=4", "4, logging_config=dray.train.LoggingConfig(fold_repeated=False)"
    )
    script = write(tmp_path / "unfolded.py", re.sub(r"report\(.*\)", "report({})", code))
    again = run(script, tmp_path / "again", GATE=str(tmp_path / "gate"))
    assert again.returncode == 0, again.stderr
    unfolded = again.stdout.splitlines()
    assert sorted(line for line in unfolded if "hello" in line) == [
        f"(rank {rank}) hello" for rank in range(4)
    ]
    (status,) = [line for line in unfolded if "RUNNING" in line]
    assert re.search(r" s, report \d$", status), status


def test_a_notebook_shows_one_status_for_each_fit_and_redraws_it(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    pytest.importorskip("tqdm")
    from nbclient import NotebookClient

    first = f"""
import os
os.environ.pop("DRAY_PROGRESS", None)
os.environ["STORAGE"], os.environ["GATE"] = {str(tmp_path)!r}, os.devnull
{write(tmp_path / "code.py", BARS).read_text()}
fit(train)
"""
    second = """
import threading
threads = [
    threading.Thread(
        target=lambda name=name: DataParallelTrainer(
            train, run_config=RunConfig(name=name, storage_path=os.environ["STORAGE"])
        ).fit()
    )
    for name in ("a", "b")
]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c) for c in (first, second)]
    )
    sent: list[dict[str, Any]] = []
    client = NotebookClient(notebook, timeout=100, kernel_name="python3")
    take = client.process_message

    def keep(message: dict[str, Any], *args: Any) -> Any:
        sent.append(message)
        return take(message, *args)

    client.process_message = keep  # type: ignore[assignment, method-assign]
    client.execute()
    shown = [message["content"] for message in sent if "display_data" in message["msg_type"]]
    areas = [content["transient"]["display_id"] for content in shown]
    assert len(set(areas)) == 3  # one for each fit, whatever the number of reports
    assert [cell.outputs[0].output_type for cell in notebook.cells]
    for cell, fits in zip(notebook.cells, (1, 2), strict=True):
        left = [o["data"]["text/plain"] for o in cell.outputs if o.output_type == "display_data"]
        assert left == [""] * fits  # taken away at the end
        text = "".join(o.text for o in cell.outputs if o.output_type == "stream")
        assert text.count("FINISHED in") == fits
        assert "RUNNING" not in text
        assert "\r" not in text
        assert "\x1b[A" not in text


def test_a_line_of_two_ranks_is_told_of_before_another_line_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox: queue.SimpleQueue[object] = queue.SimpleQueue()
    told: list[str] = []

    class Telling(Screen):
        def lines(self, texts: Sequence[str], stream: str = "stdout") -> None:
            told.extend(texts)
            if "[repeated" in texts[-1]:
                mailbox.put("shown")

    monkeypatch.setattr(progress, "LineDeduplicator", lambda: LineDeduplicator(window_s=0.02))
    shows = progress.Progress("run", tmp_path, Telling())
    now = time.monotonic()
    with monkeypatch.context() as at_once:
        at_once.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
        for rank in (0, 1):
            shows.output(rank, "stdout", b"epoch 0 begins\n")
    assert shows.next_event(mailbox) == "shown"
    assert told == ["(rank 0) epoch 0 begins", "(rank 1) epoch 0 begins [repeated 1x]"]


def test_folding_is_turned_off_by_rays_variable_and_by_drays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Settings().fold_output
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    assert not Settings().fold_output
    monkeypatch.setenv("DRAY_FOLD_OUTPUT", "1")
    assert Settings().fold_output


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", None])
def test_workers_log_what_the_script_is_configured_to_log_and_else_from_info_on(
    tmp_path: Path, start: str, level: str | None
) -> None:
    script = write(
        tmp_path / "log.py",
        f"""
        import logging

        def train():
            log = logging.getLogger("own").log
            for level in (logging.DEBUG, logging.INFO, logging.WARNING):
                log(level, "a record")
                exec(compile(f"log({{level}}, 'theirs')", "/site-packages/a.py", "exec"))
            if {level is None}:
                logging.basicConfig(format="by a handler of the script: %(message)s")
                log(logging.INFO, "a record")

        if __name__ == "__main__":
            level = {level!r}
            if level:
                logging.basicConfig(level=level)
            fit(train, workers=1)
        """,
    )
    shown = run(script, tmp_path, DRAY_START_METHOD=start).stderr
    levels = ["DEBUG", "INFO", "WARNING"]
    own = levels[levels.index(level or "INFO") :]
    theirs = levels[levels.index(level or "WARNING") :]
    assert re.findall("([A-Z]+):own:a record", shown) == own
    assert re.findall("([A-Z]+):own:theirs", shown) == theirs
    assert ("by a handler of the script: a record" in shown) == (level is None)


def test_workers_of_a_run_in_a_worker_log_as_those_of_a_script(tmp_path: Path) -> None:
    script = write(
        tmp_path / "log.py",
        """
        import logging
        import dray

        def train():
            log = logging.getLogger("own").info
            log("a record")
            exec(compile("log('theirs')", "/site-packages/a.py", "exec"))

        def outer():
            config = RunConfig(storage_path=os.environ["STORAGE"], name="inner")
            DataParallelTrainer(train, run_config=config).fit()

        dray.init(num_cpus=2)
        fit(outer, workers=1)
        """,
    )
    shown = run(script, tmp_path).stderr
    assert "INFO:own:a record" in shown
    assert "theirs" not in shown
