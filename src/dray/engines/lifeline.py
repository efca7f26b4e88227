"""What ties processes' lives together, so that nothing outlives the driver.

Every worker leads a process group, and whoever notices a death kills groups, so that what a worker
has started goes with it. A `kill -9` of any process, or of any two, leaves none behind:

- a worker dies: the fork server, its parent, kills its group;
- the driver dies: the fork server sees it by a process handle and kills all groups (while it is
  still importing, by a pipe whose hang-up the kernel answers with a signal);
- the fork server dies: the driver sees its socket close and kills all groups;
- both die: every worker sees its control socket close and kills its own group.

Python children of a worker (data loaders, pools) are tied to it by the kernel besides, by a
parent-death signal. Workers are not tied to the fork server by one: it would kill them before they
could kill what they have started.

Shared memory that a worker has made is removed by the fork server: see `leftovers`.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import select
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent's forking thread ends (Linux only).

    Args:
        parent: The parent's pid; if it is no longer the parent, this process ends now.
    """
    if sys.platform != "linux":
        return
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def children_die_with_me() -> None:
    """Ties the Python children that this process will fork (data loaders, pools) to its life.

    Only those forked by the main thread: the kernel's signal follows the thread that forked, and a
    child of a short-lived thread must not die with that thread.
    """
    forking: list[int] = []

    def before() -> None:
        if threading.get_native_id() == os.getpid():
            forking.append(os.getpid())

    def in_parent() -> None:
        forking.clear()

    def in_child() -> None:
        if forking:
            die_with_parent(forking.pop())

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def kill_group(leader: int) -> None:
    """Kills a process group; one that is gone already is fine."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        return


def signal_on_hangup(fd: int) -> None:
    """Has the kernel end this process by SIGIO when the other end of a pipe closes (Linux)."""
    if sys.platform != "linux":
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([fd], [], [], 0)[0]:  # it closed before the signal was asked for
        os.kill(os.getpid(), signal.SIGIO)


def open_process_handle(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when a process ends; None where unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
