"""Sockets between processes of dray, unaffected by a program's settings of sockets and signals."""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

# To send with: who is gone is an error then, also for a program that is to end by SIGPIPE.
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)  # macOS has none


def socket_of(fd: int) -> socket.socket:
    """Return a socket that blocks, despite `socket.setdefaulttimeout`."""
    sock = socket.socket(fileno=fd)
    sock.settimeout(None)
    return sock


def socket_pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that block, as `socket_of`."""
    ends = socket.socketpair(type=kind)
    for end in ends:
        end.settimeout(None)
    return ends


def send_fds(sock: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    """Send descriptors, and data with them, as `NO_SIGNAL` says."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    sock.sendmsg([data], [rights], NO_SIGNAL)
