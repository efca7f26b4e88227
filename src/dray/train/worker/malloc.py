"""The C library's allocator in a worker: memory that one step frees is kept for the next."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, in malloc.h
_LARGEST_TRIM_THRESHOLD = 2**31 - 1  # bytes; an int
_LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes; more is refused on 64 bits


def keep_freed_memory(environ: Mapping[str, str]) -> None:
    """Have glibc keep up to 2 GiB of freed memory at the end of its heap.

    By default it may hand the activations of every step back to the kernel and take them again:
    on CPUs that costs a training step 20 % and more of its time, by chance from start to start.
    Do nothing with another C library, or if the user tunes the allocator by variables.

    Source: mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
    """
    tuned = "glibc.malloc" in environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in environ
    )
    if tuned or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)  # which fixes what adapts itself
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)
