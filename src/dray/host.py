"""What this machine offers a run: cores and memory, with a container's limits respected."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cpu_count() -> int:
    """Returns the cores this process may use: affinity and cgroup quota respected."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_bytes() -> int:
    """Returns the memory this process may use, in bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(_CGROUP / "memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
