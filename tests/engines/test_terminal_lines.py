"""What workers print, as a terminal would show it: bars, nested bars, and no control sequences."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dray.engines.terminal_lines import SETTLED_S, Rows, last_state, without_colour

CODES = rb"\x1b[A|\x1b[2K|\x1b[31m|\x1b]0;t\x07|\x1b|[|\x1b[2;|\xc3\xa9|\xff|\x9b|\x1bM|\x1b[999B"
PIECES = st.sampled_from(
    [
        *CODES.decode("unicode_escape").encode("latin-1").split(b"|"),
        b"a",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\b",
    ]
)


@given(st.lists(PIECES, max_size=40).map(b"".join), st.lists(st.integers(0, 80), max_size=5))
@example(b"\x1b]abc\x1b[31m", [6])
def test_lines_do_not_depend_on_how_output_is_cut(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    rows = Rows()
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    got = [line for piece in pieces for line in rows.feed(piece, 0)]
    got += rows.feed(b"", 0, last=True)
    assert got == Rows().feed(data, 0, last=True)
    for line in got:  # colours, and nothing else that a terminal obeys
        assert without_colour(line).replace("\t", " ").isprintable() or "\ufffd" in line


def test_plain_lines_are_whole_at_once() -> None:
    rows = Rows()
    assert rows.feed(b"one\n\ntwo\r\nthr", 0) == ["one", "", "two"]
    assert rows.live == ["thr"]
    assert rows.feed(b"ee\n", 0) == ["three"]


def test_a_progress_bar_is_live_while_it_is_rewritten_and_a_line_in_the_end() -> None:
    rows = Rows()
    assert rows.feed(b"10%\r50%\r", 0) == []
    assert rows.live == ["50%"]
    assert rows.feed(b"\r100%\n", 0) == []  # one below it might still go up again
    assert rows.settle(SETTLED_S / 2) == []
    assert rows.settle(SETTLED_S) == ["100%"]
    assert rows.feed(b"\r20%", 2) == []
    assert rows.feed(b"\r   \rdone\nafter\n", 2) == ["done", "after"]


def test_colours_stay_and_other_control_sequences_do_not() -> None:
    data = b"\x1b[1;31mred\x1b[0m \x1b[?25l\x1b[5;5Hx\x07\x0b\x1b]0;title\x1b\\y\x9bz\x1b7\n"
    assert Rows().feed(data, 0) == ["\x1b[1;31mred\x1b[0m xy\ufffdz"]


def test_a_line_of_a_task_shows_its_last_state_in_its_own_colours() -> None:
    assert last_state(b"\r10%\r100%\x1b[A") == "100%"
    assert last_state(b"\x1b[32mgreen") == "\x1b[32mgreen\x1b[0m"
    assert last_state(b"") == ""


NESTED = """
import sys
from tqdm import tqdm
outer = tqdm(total=2, desc="outer", mininterval=0)
for step in range(2):
    inner = tqdm(total=3, desc="inner", leave=False, mininterval=0)
    third = tqdm(total=3, desc="third", leave=False, mininterval=0)
    for _ in range(3):
        inner.update()
        third.update()
    if step:
        sys.stderr.write("|pause|")
    third.close()
    inner.close()
    outer.update()
    tqdm.write(f"wrote {step}", file=sys.stderr)
outer.close()
print("over", file=sys.stderr)
"""

RICH = """
import sys
from rich.progress import Progress
with Progress(auto_refresh=False) as bars:
    tasks = [bars.add_task(name, total=4) for name in ("first", "second")]
    for step in range(4):
        for task in tasks:
            bars.advance(task)
        bars.refresh()
        if step == 2:
            bars.console.print("said")
            sys.__stdout__.write("|pause|")
print("over")
"""


@pytest.mark.parametrize("size", [7, 100_000])
@pytest.mark.parametrize(
    ("code", "live", "lines"),
    [
        (
            NESTED,
            ["outer:  50%", "inner: 100%", "third: 100%"],
            ["wrote 0", "wrote 1", "outer: 100%", "over"],
        ),
        (RICH, ["first", "second"], ["said", "first", "second", "over"]),
    ],
    ids=["tqdm", "rich"],
)
def test_nested_bars_are_live_rows_and_leave_what_a_terminal_would_show(
    code: str, live: list[str], lines: list[str], size: int
) -> None:
    pytest.importorskip("tqdm")
    written = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        timeout=60,
    ).stdout
    rows, got = Rows(), []
    for part in written.partition(b"|pause|")[::2]:
        for start in range(0, len(part), size):
            got += rows.feed(part[start : start + size], 0)
        for beginning in live:
            found = [row for row in map(without_colour, rows.live) if row.startswith(beginning)]
            assert len(found) == 1, rows.live
        live = []
    got += rows.feed(b"", 0, last=True)
    shown = [without_colour(line) for line in got if "-:--:--" not in line]
    assert len(shown) == len(lines), shown
    assert all(line.startswith(start) for line, start in zip(shown, lines, strict=True)), shown
