"""The heir of a fork server: a fork of it that has more modules, and makes the next workers.

It imports beside the server, which continues to serve. An import that fails, hangs, crashes or
makes the process unfit for forks costs only the heir.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from dray.engines import thread_limits
from dray.engines.launch import learned_imports
from dray.engines.rpc import lifeline, sockets

# For imports that take a second on a machine with nothing else to do.
_LIMIT_S = 120.0
_READY, _UNFIT = b"+", b"-"


class Heir:
    """The server's end of its heir.

    Args:
        become: Runs it, given its end of a socket and the modules; its end is the process's.

    Attributes:
        ready: Whether it serves.
        reaped: Whether its exit status has been taken.
        unfit: The module because of which it has ended, if it has.
    """

    def __init__(
        self, modules: Sequence[str], become: Callable[[socket.socket, Sequence[str]], None]
    ) -> None:
        self.modules = modules
        self.ready = self.reaped = False
        self.unfit = ""
        self._deadline = time.monotonic() + _LIMIT_S
        self.socket, far = sockets.socket_pair()
        server = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            self.socket.close()
            far.close()
            raise
        if self.pid == 0:
            try:
                lifeline.die_with_parent(server)
                self.socket.close()
                become(far, modules)
            except BaseException:  # noqa: BLE001 (the process ends here, whatever it was)
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(0)
        far.close()

    def time_left(self) -> float | None:
        """Return for how long it may still import; None is without limit."""
        return None if self.ready else max(0.0, self._deadline - time.monotonic())

    def hear(self) -> bool:
        """Take what it says; return whether it goes on."""
        try:
            said = self.socket.recv(4096)
        except ConnectionError:
            return False
        self.ready = self.ready or said == _READY
        if said.startswith(_UNFIT):
            self.unfit = said.removeprefix(_UNFIT).decode()
        return said == _READY

    def kill(self) -> None:
        if not self.reaped:
            lifeline.kill_family(self.pid)

    def end(self) -> None:
        """End it, with its workers if it has some, and wait until it is gone."""
        self.socket.close()
        if not self.ready:
            self.kill()
        if not self.reaped:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.reaped = True


def become_heir(control: socket.socket, modules: Sequence[str]) -> None:
    """Import what the heir is to have, and tell; end the process if it must have no forks."""
    parent = os.getppid()
    try:
        with _silence():
            learned_imports.import_fit(modules)
    except learned_imports.UnfitError as error:
        with contextlib.suppress(ConnectionError):  # nobody needs it any more
            control.sendall(_UNFIT + str(error).encode())
        os._exit(0)
    with contextlib.suppress(Exception):  # what fails fails again, in sight, in a worker
        thread_limits.find_for_forks()
    gc.freeze()
    lifeline.live_without_parent()  # from now on its socket tells, and it has workers to end
    if os.getppid() == parent:
        with contextlib.suppress(ConnectionError):
            control.sendall(_READY)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Have warnings go nowhere: the worker that imported the same has shown them."""
    null = os.open(os.devnull, os.O_WRONLY)
    kept = [(fd, os.dup(fd)) for fd in (1, 2)]
    for fd, _ in kept:
        os.dup2(null, fd)
    os.close(null)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # there may be none
                stream.flush()
        for fd, copy in kept:
            os.dup2(copy, fd)
            os.close(copy)
