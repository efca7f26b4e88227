"""A Python without the calls, constants and files that macOS lacks, for programs of tests.

Put this folder into `PYTHONPATH`; workers find it as well.
"""

import builtins
import functools
import io
import os
import select
import selectors
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

LACKING: Mapping[ModuleType, str] = {
    os: "sched_ memfd_create MFD_ pidfd_open eventfd EFD_ waitid copy_file_range getrandom "
    "posix_fadvise posix_fallocate O_TMPFILE O_PATH O_DIRECT pipe2 fdatasync getxattr setxattr",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRT",
    select: "epoll EPOLL",
    selectors: "EpollSelector",
    socket: "SO_PEERCRED SO_PASSCRED MSG_CMSG_CLOEXEC MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK "
    "SOCK_SEQPACKET AF_NETLINK TCP_USER_TIMEOUT TCP_KEEPIDLE",
}
ONLY_LINUX = ("/proc", "/sys", "/dev/shm")
LONGEST_PATH = 103


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of paths that does not find those of Linux alone."""

    @functools.wraps(function)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike):
            name = os.fsdecode(path)
            if any(name == only or name.startswith(f"{only}/") for only in ONLY_LINUX):
                raise FileNotFoundError(2, "No such file or directory", name)
        return function(path, *args, **kwargs)

    return call


def in_directories(method: str) -> Callable[..., Any]:
    """Return a method of sockets that takes short names in directories alone."""
    plain = getattr(socket.socket, method)

    def call(self: socket.socket, address: Any) -> Any:
        if self.family == socket.AF_UNIX:
            name = os.fsencode(address)
            if name.startswith(b"\0") or len(name) > LONGEST_PATH:
                raise OSError(f"no name of a socket: {address!r}")
        return plain(self, address)

    return call


sysconfig.get_config_vars()  # of this system
sys.platform = "darwin"
for module, beginnings in LACKING.items():
    for name in [name for name in vars(module) if name.startswith(tuple(beginnings.split()))]:
        delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc, assignment]
for name in ("listdir", "open", "readlink", "scandir", "stat", "statvfs"):
    setattr(os, name, hidden(getattr(os, name)))
builtins.open = io.open = hidden(open)
for name in ("bind", "connect", "connect_ex"):
    setattr(socket.socket, name, in_directories(name))
