"""The memory of processes, from the kernel's `smaps_rollup`."""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

import psutil


class Memory(NamedTuple):
    """The memory of one process in MB.

    `private` is the memory that it does not share (USS). `proportional` also has its share of the
    shared memory (PSS).
    """

    process: str
    private: float
    proportional: float


def read_descendants() -> dict[int, Memory]:
    """Read the memory of every process that this one has started, by pid."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, OSError):  # it has just ended
            found[process.pid] = _read(process)
    return found


def _read(process: psutil.Process) -> Memory:
    kilobytes = dict.fromkeys(("Private_Clean", "Private_Dirty", "Pss"), 0)
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
    for line in rollup.splitlines()[1:]:
        name, amount = line.split()[:2]
        if name.rstrip(":") in kilobytes:
            kilobytes[name.rstrip(":")] = int(amount)
    private = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    return Memory(_label(process), _megabytes(private), _megabytes(kilobytes["Pss"]))


def _megabytes(kilobytes: int) -> float:
    return kilobytes * 1024 / 1e6


def _label(process: psutil.Process) -> str:
    """Return the name of a process's program, without paths: its title, script or module."""
    title: list[str] = process.cmdline()
    if not title or "::" in title[0]:
        return title[0] if title else str(process.name())
    runs = [Path(argument).name for argument in title[1:4] if argument.endswith(".py")]
    if "-c" in title[:2]:
        runs = re.findall(r"from ([\w.]+) import", title[2])
    return " ".join([process.name(), *runs[:1]])
