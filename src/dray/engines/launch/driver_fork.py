"""A fork server that shares the driver's imports: a fork of the driver, where that is safe.

If the script itself has imported torch, the server need not import it again. A fork is safe if the
process has one thread at that moment. Then no lock is held by a thread that the fork lacks, and
there is no OpenMP pool and no CUDA context, which both have threads. Numpy's BLAS ends its threads
as part of a fork, so the number of threads is known only afterwards: the fork waits until its
parent has counted its own threads, and is discarded if there is a second one. The process must not
have opened an accelerator either.

State in the driver's memory must not act in the fork. Descriptors are redirected, signal handlers
are removed, and so are handlers of `logging` that do not write to the console. `__main__` is empty,
and nothing is ever finalised.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import logging.handlers
import os
import signal
import stat
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Sequence

# A driver that holds much more than imports would have it twice as it changes.
_MOST_RESIDENT_BYTES = 1 << 30

# Major numbers of character devices: memory such as /dev/null, and terminals.
# Source: Linux, Documentation/admin-guide/devices.txt.
_HARMLESS = {1, 4, 5, *range(136, 144)}

_WITH_MEMORY_OR_SOCKET = (
    logging.handlers.BufferingHandler,
    logging.handlers.QueueHandler,
    logging.handlers.SocketHandler,
    logging.handlers.SysLogHandler,
)

_kept: list[object] = []


class Clone:
    """A fork of this process, with the part of `subprocess.Popen` that its owner needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def _reap(self, options: int) -> int | None:
        if self._status is None:
            try:
                done, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # reaped by the system, where the program ignores SIGCHLD
                done, status = self.pid, 0
            if done:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


def can_share(modules: Iterable[str]) -> bool:
    """Return whether a fork is worth a try: it has some of the imports, and may be safe."""
    packages = {module.partition(".")[0] for module in modules} - {__name__.partition(".")[0]}
    return (
        sys.platform == "linux"
        and (not packages or any(package in sys.modules for package in packages))
        and threading.active_count() == 1
        and threading.current_thread() is threading.main_thread()
        and sys.gettrace() is None
        and sys.getprofile() is None
        and not _tracks_resources()
        and not uses_devices()
        and _resident_bytes() < _MOST_RESIDENT_BYTES
    )


def fork_driver(serve: Callable[[], object], keep: Sequence[int]) -> Clone | None:
    """Fork this process, if it has one thread.

    Args:
        serve: Main function of the fork; its end is the fork's end.

    Returns:
        The fork, or None if there was another thread.
    """
    told, tell = os.pipe()
    with warnings.catch_warnings():
        # Python, JAX and Lance warn of threads; they are counted.
        for category in (DeprecationWarning, RuntimeWarning, UserWarning):
            warnings.simplefilter("ignore", category)
        pid = os.fork()
    if pid == 0:
        status = 0
        try:
            os.close(tell)
            if os.read(told, 1):
                status = 1
                _forget_driver(keep)
                serve()
                status = 0
        except Exception:  # noqa: BLE001 (there is nobody above who could tell of it)
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(told)
    alone = threads() == 1
    if alone:
        os.write(tell, b"1")
    os.close(tell)
    clone = Clone(pid)
    if not alone:
        clone.wait()
        return None
    return clone


def threads() -> int:
    """Return how many threads this process has, those of libraries among them.

    Not counted is the one of jemalloc, which comes with pyarrow, and so with pandas: jemalloc sees
    to it in a fork, and a fork does without.
    """
    names = os.listdir("/proc/self/task")
    return len(names) if len(names) == 1 else len(names) - sum(map(_is_of_jemalloc, names))


def _is_of_jemalloc(thread: str) -> bool:
    try:
        with open(f"/proc/self/task/{thread}/comm") as file:
            return file.read() == "jemalloc_bg_thd\n"
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return False


def _forget_driver(keep: Sequence[int]) -> None:
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            logger.handlers[:] = (each for each in logger.handlers if not _is_lost(each))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in (null, *keep):
            # Not closed: a number that is free would be given to another file, and what a buffer
            # of the driver's still holds must not end up in that one.
            try:
                os.dup2(null, fd, inheritable=False)
            except OSError:  # above a limit that was lowered meanwhile: it is given to no file
                os.close(fd)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    _kept.append(sys.modules["__main__"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    gc.disable()
    gc.freeze()


def _is_lost(handler: logging.Handler) -> bool:
    """Return whether a fork's records end in a handler: in memory, or on a descriptor it lacks."""
    if not isinstance(handler, logging.StreamHandler):
        return isinstance(handler, _WITH_MEMORY_OR_SOCKET)
    try:
        return bool(handler.stream.fileno() > 2)
    except Exception:  # noqa: BLE001 (in memory, closed, not open yet, or of the user's making)
        return True


def _tracks_resources() -> bool:
    """Return whether multiprocessing has a tracker process here, which a fork would not reach."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    return getattr(tracker, "_fd", None) is not None


def uses_devices() -> bool:
    """Return whether this process has opened a device, such as a GPU.

    A driver that has asked for GPUs, by `torch.cuda.is_available()` for example, has no context and
    no thread yet, but CUDA works in no fork of it. The same goes for other vendors' devices.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            kind = os.fstat(int(name))
            if stat.S_ISCHR(kind.st_mode) and os.major(kind.st_rdev) not in _HARMLESS:
                return True
    return False


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
