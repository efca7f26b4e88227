"""The system's limits of open files and processes: raised if allowed, and named in errors."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
from collections.abc import Iterator

from dray import host
from dray.engines.rpc import sockets
from dray.errors import EngineError

# So many descriptors are left for others when the limit is raised.
_MARGIN = 128


class OpenFiles:
    """The limit of this process's open files: doubled when need be, up to the hard limit.

    Not more at once, and not for workers: some programs close every number that is allowed, and
    `select` takes none above 1,023.
    """

    def __init__(self) -> None:
        self.at_first = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def make_room(self, fd: int) -> None:
        """Raise the limit if a descriptor that was opened just now is near it."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = resource.RLIM_INFINITY
        if soft in (unlimited, hard) or fd + _MARGIN < soft:
            return
        most = 2 * soft if hard == unlimited else min(2 * soft, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS has one more limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

    def restore(self) -> None:
        restore_open_files(self.at_first)


def restore_open_files(soft: int) -> None:
    """Set the soft limit of open files to an earlier value, if it is higher now."""
    now, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != soft:
        with contextlib.suppress(OSError, ValueError):  # the user has lowered the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def opening(what: str) -> Iterator[contextlib.ExitStack]:
    """Undo what is opened for a process if not all of it can be.

    Raises:
        EngineError: There is no room; it says for what, and which limit is met.
    """
    with contextlib.ExitStack() as undo:
        try:
            yield undo
        except OSError as error:
            why = describe(error.errno or 0, error.filename)
            raise EngineError(f"{what} could not be started: {why}") from error
        undo.pop_all()


def socket_pair(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    """Return two ends of a connection: the first is closed with `ours`, the other with `theirs`."""
    here, there = sockets.socket_pair()
    ours.callback(here.close)
    theirs.callback(there.close)
    return here, there


def pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """Return where a pipe is read and where it is written, which are closed in the same way."""
    here, there = os.pipe()
    ours.callback(os.close, here)
    theirs.callback(os.close, there)
    return here, there


def describe(number: int, file: str | None = None) -> str:
    """Say which limit an error means, as the reason that something cannot be started.

    Args:
        number: Such as EAGAIN, of a process, or EMFILE, of an open file.
        file: Path that the error is about, such as that of a missing interpreter.
    """
    text = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
    if number in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if number == errno.ENFILE:
            return f"{text}: the whole machine has too many files open"
        return (
            f"{text}: the limit of open files (ulimit -n) is {soft}, at most {hard}; raise it, or "
            "use fewer workers at a time"
        )
    if number == errno.ETOOMANYREFS:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"{text}: this user may have {soft} open files in transit between processes (ulimit "
            "-n); raise that limit, or start fewer workers at a time"
        )
    if number == errno.EAGAIN:
        parts = []
        soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        if soft != resource.RLIM_INFINITY:
            parts.append(f"this user may have {soft} processes and threads (ulimit -u)")
        most = host.group_limit("pids", "pids.max", "pids.max")
        if most is not None:
            parts.append(f"this container may have {most} (pids.max)")
        limits = " and ".join(parts) or "the system allows no more"
        return (
            f"{text}: the limit of processes is reached; {limits}; raise it, or use fewer workers"
        )
    if number == errno.ENOMEM:
        return f"{text}: there is no memory for one more process; use fewer or smaller workers"
    return f"{text}: {file}" if file else text


def shareable_bytes(wanted: int) -> int:
    """Return how much memory processes may share, if no more than this is wanted.

    Shared memory counts as a file (ulimit -f), and every process maps all of it, whose own memory
    counts as well (ulimit -v).
    """
    unlimited = resource.RLIM_INFINITY
    for limit, part in ((resource.RLIMIT_FSIZE, 1), (resource.RLIMIT_AS, 4)):
        soft = resource.getrlimit(limit)[0]
        wanted = wanted if soft == unlimited else min(wanted, soft // part)
    return wanted & -resource.getpagesize()


def describe_map(error: OSError, size: int) -> str:
    """Say why this process cannot look into the memory that a session's processes share."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    allowed = "no more" if soft == resource.RLIM_INFINITY else f"{soft >> 20} MiB (ulimit -v)"
    return (
        f"pid {os.getpid()} cannot map the {size >> 20} MiB for shared objects: {error}. It may "
        f"have {allowed}; raise that limit, or set dray.init(object_store_memory=...) lower"
    )


class MemoryWatch:
    """Tells whether the kernel killed a process for want of memory, since before it started."""

    def __init__(self) -> None:
        self._kills = _out_of_memory_kills()

    def was_starved(self, exitcode: int | None, killed: bool) -> bool:
        """Return whether a process ended so, by its exit status and whether it was killed here."""
        return exitcode == -signal.SIGKILL and not killed and _out_of_memory_kills() > self._kills


def _out_of_memory_kills() -> int:
    with contextlib.suppress(OSError), open("/proc/vmstat", encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
