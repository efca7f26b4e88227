"""What tasks print that is long: progress bars that never end their line, lines of megabytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRAWS = """
import sys, dray

@dray.remote
def draws():
    for percent in range(100):
        bars = "".join(f"\\r{percent:3}% {step:0400}" for step in range(1000))
        sys.stdout.write(bars + "\\r")
        sys.stdout.flush()
    print("done")

dray.get(draws.remote())
"""

PRINTS = """
import dray

@dray.remote
def prints():
    print("a" * 900_000 + "|")
    print("b" * 3_000_000)
    print("end")

dray.get(prints.remote())
"""


def lines_of(program: str, directory: Path) -> list[str]:
    script = directory / "script.py"
    script.write_text(program)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_a_bar_that_is_drawn_for_hours_costs_the_driver_nothing(tmp_path: Path) -> None:
    """All of it was kept, and read anew with each piece."""
    (line,) = lines_of(DRAWS, tmp_path)
    assert line.startswith("(draws pid=")
    assert line.endswith(") done")


def test_long_lines_come_whole_up_to_a_megabyte(tmp_path: Path) -> None:
    first, *pieces, end = [line.partition(") ")[2] for line in lines_of(PRINTS, tmp_path)]
    assert first == "a" * 900_000 + "|"
    assert "".join(pieces) == "b" * 3_000_000
    assert 1 < len(pieces) < 4
    assert end == "end"
