"""Limits of the threads that libraries compute with in a task or actor: one a CPU.

As on Ray, `OMP_NUM_THREADS` says so where the user has not set it. Libraries read that when they
are imported; those that are there already, as in a fork, are told.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

_VARIABLE = "OMP_NUM_THREADS"
# The package that sets the threads of NumPy's BLAS, if it is installed.
_TELLS_BLAS = "threadpoolctl"

_set_here: str | None = None  # the value that is not the user's
_libraries: list[Any] | None = None  # found before a fork, for it
_at_first: list[int] = []  # the threads of each, before anything was said


def threads_for(resources: Mapping[str, float]) -> int:
    """Return how many threads go with what a task or actor holds."""
    return max(1, int(resources.get("CPU", 0)))


def use(threads: int) -> None:
    """Have libraries compute with so many threads, unless the user says otherwise."""
    global _set_here
    if os.environ.get(_VARIABLE) != _set_here:
        return
    _set_here = os.environ[_VARIABLE] = str(threads)
    for name in ("torch", "numexpr"):
        if name in sys.modules:
            sys.modules[name].set_num_threads(threads)
    for library in _find() if _libraries is None else _libraries:
        if library.num_threads != threads:
            library.set_num_threads(threads)


def find_for_forks() -> None:
    """Look for NumPy's BLAS now, which takes milliseconds, so that forks need not."""
    global _libraries, _at_first
    _libraries = _find() or None
    _at_first = [library.num_threads for library in _libraries or ()]


def before_fork(*, limited: bool) -> None:
    """Have BLAS begin with one thread in the next fork, or with as many as at first.

    To say so in the fork starts OpenBLAS's threads there, which stay awake for a tenth of a second;
    here they end with the fork, before they have done so.

    Args:
        limited: Whether the fork computes with one thread a CPU that it holds.
    """
    if _VARIABLE in os.environ:
        return
    for library, at_first in zip(_libraries or (), _at_first, strict=False):
        threads = 1 if limited else at_first
        if library.num_threads != threads:
            library.set_num_threads(threads)


def _find() -> list[Any]:
    if "numpy" not in sys.modules:
        return []
    try:
        blas = importlib.import_module(_TELLS_BLAS)
    except ImportError:
        return []
    return list(blas.ThreadpoolController().select(user_api="blas").lib_controllers)


def users_environment() -> dict[str, str]:
    """Return this process's variables, without what was set here."""
    environment = dict(os.environ)
    if _set_here is not None and environment.get(_VARIABLE) == _set_here:
        del environment[_VARIABLE]
    return environment
