"""Modules that workers have imported beyond their fork server, and their import in its heir.

If the server already has these modules, its next workers need not import them. A training worker
starts again with the next training, or after a failure, so it is learned from at once. Workers of
tasks and actors are many and stay, so it is learned from them once a worker imports what one before
it has imported: tasks with GPUs, which get a new process each, or pools of actors.

But a fork has no threads, so a module that starts threads must not be imported there. Nor must a
module that opens a device, starts a process, or reads a variable that differs between ranks. This
shows only when the module is imported, so it is imported in a fork, which is then discarded.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence

from dray import host
from dray.accelerators import families
from dray.engines.launch import driver_fork
from dray.engines.rpc import lifeline

# Words of a worker: its server is to import these modules, or only if a later worker has them too.
AT_ONCE, IF_REPEATED = "IMPORTED", "IMPORTED_IN_TASKS"
# More is no training step any more.
_MOST = 5000
# New modules that are worth a message, and how many such messages there are at most.
_MANY = 30
_MOST_TELLS = 3
# Variables that differ between the ranks of a run, besides those that show each its devices.
_OF_A_RANK = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "JAX_PLATFORMS"),
}
# Parts of Ray that draw random ids as they are imported: all forks would go on with the same ones.
_DRAW_IDS = ("ray.data", "ray.rllib", "ray.serve", "ray.train", "ray.tune")


class UnfitError(Exception):
    """A module that a fork server must not have; the argument is its name."""


def imported_since(before: frozenset[str]) -> list[str]:
    """Return the modules of installed packages that this process has imported beyond some.

    Not the program's own: it may be edited between two runs.
    """
    new = [name for name in list(sys.modules) if name not in before]
    return [name for name in new if _is_installed(name)][:_MOST]


class Teller:
    """Tells a worker's fork server of the modules that the worker imports from now on.

    Args:
        inlet: Socket to the server.
        word: `AT_ONCE` or `IF_REPEATED`, when the server is to import them.
    """

    def __init__(self, inlet: int, word: str) -> None:
        self._inlet = inlet
        self._word = word
        self._inherited = frozenset(sys.modules)
        self._few = len(sys.modules) + _MANY
        self._left = _MOST_TELLS

    def look(self) -> None:
        """Tell, if many modules are new."""
        if self._left and len(sys.modules) > self._few:
            self._left -= 1
            self._few = len(sys.modules) + _MANY
            with contextlib.suppress(OSError):  # the server is gone
                os.write(self._inlet, to_line(self._word, imported_since(self._inherited)))


def _is_installed(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return (
        spec is not None
        and spec.name == name
        and isinstance(spec.origin, str)
        and host.is_installed(spec.origin)
        and "," not in name
    )


def import_fit(modules: Iterable[str]) -> None:
    """Import modules, in a process that can be given up.

    Raises:
        UnfitError: This process must not have forks any more, because of the last package.
    """
    helpers = lifeline.children(os.getpid())
    of_a_rank = _OF_A_RANK.union(*(family.variables for family in families()))
    draw_ids = [name for name in _DRAW_IDS if name not in sys.modules]
    with _recorded_variables() as asked:
        for name in modules:
            if name in sys.modules:
                continue
            new = _outermost_new(name)
            try:
                importlib.import_module(name)
            except BaseException as error:
                raise UnfitError(new) from error
            if (
                asked & of_a_rank
                or driver_fork.uses_devices()
                or any(part in sys.modules for part in draw_ids)
                or lifeline.children(os.getpid()) != helpers
                or not _forks_alone()
            ):
                raise UnfitError(new)


def _outermost_new(name: str) -> str:
    """Return the package that is imported first, of those around a module."""
    parts = name.split(".")
    around = (".".join(parts[: count + 1]) for count in range(len(parts)))
    return next(outer for outer in around if outer not in sys.modules)


def _forks_alone() -> bool:
    """Return whether this process has one thread when it forks.

    NumPy's BLAS has threads that it ends as part of a fork.
    """
    if driver_fork.threads() == 1:
        return True
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    alone = driver_fork.threads() == 1
    os.waitpid(pid, 0)
    return alone


@contextlib.contextmanager
def _recorded_variables() -> Iterator[set[str]]:
    """Yield a set that gets the names of the environment variables that are read."""
    asked: set[str] = set()
    kind: type[os._Environ[str]] = type(os.environ)

    class Recording(kind):  # type: ignore[misc, valid-type]
        """An environment that takes note of who asks for what."""

        def __getitem__(self, name: str) -> str:
            asked.add(name)
            value: str = super().__getitem__(name)
            return value

    os.environ.__class__ = Recording
    try:
        yield asked
    finally:
        os.environ.__class__ = kind


def to_line(word: str, modules: Sequence[str]) -> bytes:
    """Return modules as a worker tells them to its server."""
    return f"{word}:{','.join(modules)}:\n".encode("ascii", "ignore")
