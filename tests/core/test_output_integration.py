"""What tasks and calls print: that it is all shown, and under whose name."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from pathlib import Path

RAW = """
import sys, dray

@dray.remote
class Writer:
    def write(self, text):
        sys.stdout.buffer.write(text)

    def write_and_fail(self, text):
        sys.stdout.buffer.write(text)
        raise KeyError(text)

@dray.remote
def write(text):
    sys.stdout.buffer.write(text)

@dray.remote
def unfinished(text):
    print(text, end="")

writer = Writer.remote()
refs = [write.remote(b"of a task\\n"), writer.write.remote(b"of a call\\n")]
dray.get([*refs, unfinished.remote("of no line")])
try:
    dray.get(writer.write_and_fail.remote(b"of a failure\\n"))
except KeyError:
    sys.stdin.read()
"""


def test_output_is_there_at_the_end_of_what_has_written_it(tmp_path: Path) -> None:
    """While the workers live: what had not come yet came when they ended."""
    script = tmp_path / "script.py"
    script.write_text(RAW)
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(4)]
        assert program.poll() is None
        program.communicate("")
    said = {line.partition(") ")[2].strip() for line in lines}
    assert said == {"of a task", "of a call", "of a failure", "of no line"}


NAMES = """
import contextlib, io, os, sys, dray

dray.init(num_cpus=1)

@dray.remote
def first(text):
    print(text)

@dray.remote
def second(text):
    print(text, end="")

@dray.remote
def raw(text):
    os.write(1, text + b"\\n")

@dray.remote
def caught(text):
    out, into = os.pipe()
    kept = os.dup(1)
    os.dup2(into, 1)
    print(text)
    os.dup2(kept, 1)
    os.close(into)
    with open(out) as pipe:
        return pipe.read()

@dray.remote
def replaced(text):
    sys.stdout = io.StringIO()
    print("nowhere")
    sys.stdout = open(1, "w", closefd=False)
    sys.stdout.write(text)

refs = [task.remote(f"of {task.__name__}") for _ in range(50) for task in (first, second)]
dray.get(refs)
dray.get([raw.remote(b"of raw"), first.remote("of first")])
assert dray.get([caught.remote("what"), caught.remote("else")]) == ["what\\n", "else\\n"]
dray.get([first.remote("of first"), replaced.remote("of replaced")])
"""


def test_lines_are_shown_under_the_task_that_has_printed_them(tmp_path: Path) -> None:
    """Most were under the name of the task that the driver had heard of last."""
    script = tmp_path / "script.py"
    script.write_text(NAMES)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert ran.stderr == ""
    shown = [re.fullmatch(r"\((\w+) pid=\d+\) of (\w+)", it) for it in ran.stdout.splitlines()]
    names = [it.groups() if it else () for it in shown]
    unsure = {"raw", "replaced"}  # what Python's own streams do not see may be another's
    assert {text for name, text in names if name != text} <= unsure
    told = collections.Counter(text for _, text in names)
    assert told == {"first": 52, "second": 50, "raw": 1, "replaced": 1}
