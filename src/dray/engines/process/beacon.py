"""How `dray status` finds the sessions of this user, and asks them.

A session listens on a Unix socket whose name lies in no directory (Linux only), so that nothing is
left when its process is killed. Only processes of the same user are answered.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dray.engines.reader import Reader

_PATIENCE_S = 2.0


def _prefix() -> str:
    return f"dray-{os.getuid()}-"


class Beacon:
    """Answers those who ask for a session's status.

    Args:
        reader: Tells when somebody calls.
        status: What to answer, as JSON can say it.
    """

    def __init__(self, reader: Reader, status: Callable[[], dict[str, Any]]) -> None:
        self._reader = reader
        self._status = status
        self._listener: socket.socket | None = None
        if sys.platform == "linux":
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(f"\0{_prefix()}{os.getpid()}")
            self._listener.listen()
            reader.watch(self._listener, self._on_call)

    def _on_call(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # whoever called may have hung up
            caller, _ = self._listener.accept()
            with caller:
                caller.settimeout(_PATIENCE_S)
                if _user_of(caller) == os.getuid():
                    caller.sendall(json.dumps(self._status()).encode())

    def close(self) -> None:
        """Stops to listen, once the reader has ended."""
        if self._listener is not None:
            self._reader.unwatch(self._listener)
            self._listener.close()


def _user_of(caller: socket.socket) -> int:
    if sys.platform != "linux":
        return -1
    size = struct.calcsize("3i")
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    user: int = struct.unpack("3i", credentials)[1]
    return user


def sessions() -> dict[int, dict[str, Any]]:
    """Returns the status of every session of this user on this machine, by its driver's pid."""
    found: dict[int, dict[str, Any]] = {}
    prefix = f"@{_prefix()}"
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    for name in dict.fromkeys(line.split()[-1] for line in lines):
        pid = name.removeprefix(prefix)
        if name.startswith(prefix) and pid.isdigit():
            try:
                found[int(pid)] = _ask(name[1:])
            except TimeoutError:
                found[int(pid)] = {"engine": "process", "note": "it does not answer"}
            except (OSError, ValueError):  # it has just ended
                continue
    return found


def _ask(name: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_PATIENCE_S)
        sock.connect(f"\0{name}")
        if _user_of(sock) != os.getuid():
            raise OSError("somebody else has taken the name")
        data = b""
        while piece := sock.recv(1 << 16):
            data += piece
    status: dict[str, Any] = json.loads(data)
    return status
