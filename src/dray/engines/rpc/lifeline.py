"""Ties between the lives of processes, so that no process outlives the driver.

Every worker leads a process group. On Linux, every worker and the fork server are also subreapers:
they adopt the processes below them that lose their parent. So a worker's children stay below it,
even those that it has started in a session of their own or as daemons. The process that notices a
death kills the process group and all processes below. After a `kill -9` of any one or two
processes, none is left behind, except in the last case:

- A worker dies: the fork server, its parent, kills its group, and the processes that have become
  its own children.
- The driver dies: the fork server notices it by a process handle and kills all processes below
  itself. While it is still importing, it uses a pipe, whose hang-up makes the kernel send a signal.
- The fork server dies: the driver sees its socket close and kills all workers and the processes
  below them.
- The fork server's heir dies: the server ends the heir's workers and itself, and the driver notices
  that. An heir that notices its server's end does the same. The kernel kills an heir that is still
  importing.
- Driver and fork server die: every worker sees its control socket close and kills all processes
  below it and its own group. The kernel wakes a stopped worker for this.
- A worker and the fork server die at the same moment: the driver kills the worker's group. But the
  processes that the worker had in sessions of their own have become children of a process further
  up, and stay.

The kernel also ties Python children of a worker (data loaders, pools) to it, by a parent-death
signal. Workers have no such signal for the fork server: it would kill them before they could kill
the processes that they have started.

On systems other than Linux no process is adopted, and processes in sessions of their own stay.

The fork server removes the shared memory that a worker has made; see `launch/resource_tracker.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import os
import select
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent's forking thread ends (Linux only).

    Args:
        parent: The parent's pid; if it is no longer the parent, this process ends now.
    """
    if sys.platform != "linux":
        return
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def live_without_parent() -> None:
    """Take back what `die_with_parent` has asked for."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, 0)


def children_die_with_me() -> None:
    """Tie the Python children that this process will fork (data loaders, pools) to its life.

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


def adopt_orphans() -> None:
    """Have what loses its parent below this process become its child (Linux only)."""
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_well_without_parent() -> None:
    """Have this worker go on if it is stopped when its parent ends, and end with its family.

    The process that is about to kill all of them stops them first, and may then be killed itself.
    If the parent of a worker ends while a process of the worker's group is stopped, the system
    sends the group SIGHUP. To end by that would be too early for processes outside the group.
    """
    worker = os.getpid()
    if sys.platform == "linux":
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)

    def end(number: int, frame: object) -> None:
        if os.getpid() == worker:
            end_with_family()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # in a fork of the worker
        os.kill(os.getpid(), signal.SIGHUP)

    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # or the program runs under nohup
        signal.signal(signal.SIGHUP, end)


def children(pid: int) -> list[int]:
    """Return the children of a process, those that have ended and are not reaped among them.

    Some may be missing while others end. Empty where the system does not tell (only Linux does).
    """
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def kill_below(pid: int) -> None:
    """Kill every process below one; those that they start meanwhile as well."""
    known: set[int] = set()
    look = [pid]
    while look:
        new = {child for parent in look for child in children(parent)} - known
        for child in new:
            _signal(child, signal.SIGSTOP)  # from now on it starts nothing
        known |= new
        look = [*new] or [parent for parent in (pid, *known) if {*children(parent)} - known]
    for child in known:
        _signal(child, signal.SIGKILL)


def kill_family(leader: int) -> None:
    """Kill a process, its group, and what is below it; one that is gone already is fine."""
    _signal(leader, signal.SIGSTOP)
    kill_worker(leader)


def kill_worker(pid: int) -> None:
    """Kill a worker, its group, and what is below it.

    It is not stopped: if this process is killed meanwhile, it sees that, and does the same.
    """
    kill_below(pid)
    _signal(pid, signal.SIGKILL)
    kill_group(pid)


def end_with_family() -> None:
    """Kill this worker, and what it has started; never returns."""
    kill_below(os.getpid())
    kill_group(0)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it is gone, or another user's
        os.kill(pid, number)


def kill_group(leader: int) -> None:
    """Kill a process group; one that is gone already is fine."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
        return


def signal_on_hangup(fd: int) -> None:
    """Have the kernel end this process by SIGIO when the other end of a pipe closes (Linux)."""
    if sys.platform != "linux":
        return
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([fd], [], [], 0)[0]:  # it closed before the signal was asked for
        os.kill(os.getpid(), signal.SIGIO)


def open_process_handle(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends; None where unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
