"""Limits of the threads that libraries compute with in a task or actor: one a CPU.

As on Ray, `OMP_NUM_THREADS` says so where the user has not set it. Libraries read that when they
are imported; those that are there already, as in a fork, are told.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping

_VARIABLE = "OMP_NUM_THREADS"
# What tells NumPy's BLAS, if it is installed; forks are to have it.
TELLS_BLAS = "threadpoolctl"

_set_here: str | None = None  # the value that is not the user's


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
    if "numpy" in sys.modules:
        try:
            blas = importlib.import_module(TELLS_BLAS)
        except ImportError:
            return
        for library in blas.ThreadpoolController().select(user_api="blas").lib_controllers:
            library.set_num_threads(threads)


def users_environment() -> dict[str, str]:
    """Return this process's variables, without what was set here."""
    environment = dict(os.environ)
    if _set_here is not None and environment.get(_VARIABLE) == _set_here:
        del environment[_VARIABLE]
    return environment
