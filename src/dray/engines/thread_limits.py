"""Limits of the threads that libraries compute with in a task or actor: one for each CPU.

As in Ray, `OMP_NUM_THREADS` is set to the limit if the user has not set it. Libraries read the
variable when they are imported. In libraries that are imported already, as in a fork, the limit is
set by a call.
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
# Found before a fork, for it: each with its threads before anything was said.
_libraries: list[tuple[Any, int]] = []


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
    for library, _ in _libraries or _find():
        if library.num_threads != threads:
            library.set_num_threads(threads)


def find_for_forks() -> None:
    """Look for NumPy's BLAS now, which takes milliseconds, so that forks need not."""
    global _libraries
    known = {library.filepath: at_first for library, at_first in _libraries}
    _libraries = [(library, known.get(library.filepath, now)) for library, now in _find()]


def before_fork(*, limited: bool) -> None:
    """Have BLAS begin with one thread in the next fork, or with as many as at first.

    To say so in the fork starts OpenBLAS's threads there, which stay awake for a tenth of a second;
    here they end with the fork, before they have done so.

    Args:
        limited: Whether the fork computes with one thread a CPU that it holds.
    """
    if _VARIABLE in os.environ:
        return
    for library, at_first in _libraries:
        threads = 1 if limited else at_first
        if library.num_threads != threads:
            library.set_num_threads(threads)


def _find() -> list[tuple[Any, int]]:
    """Return NumPy's BLAS, if it can be told, with the threads that it has now."""
    if "numpy" not in sys.modules:
        return []
    try:
        blas = importlib.import_module(_TELLS_BLAS)
    except ImportError:
        return []
    found = blas.ThreadpoolController().select(user_api="blas").lib_controllers
    return [(library, library.num_threads) for library in found]


def users_environment() -> dict[str, str]:
    """Return this process's variables, without what was set here."""
    environment = dict(os.environ)
    if _set_here is not None and environment.get(_VARIABLE) == _set_here:
        del environment[_VARIABLE]
    return environment
