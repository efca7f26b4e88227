"""The status socket, by which `dray status` finds the programs of this user and queries them.

A program listens on a Unix socket whose name is in no directory (Linux only), so that nothing is
left when its process is killed. The names are in the network namespace, which containers may share,
and any user can take one. So a part of the name is random, and both ends check the user of the
other end.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.sockets import NO_SIGNAL

if TYPE_CHECKING:
    from dray.engines.runtime import Described

_PATIENCE_S = 2.0
_logger = logging.getLogger(__name__)


def _prefix() -> str:
    return f"dray-{os.getuid()}-"


class StatusSocket:
    """Answers those who ask for a program's status, once it is open.

    A program that cannot listen is not shown, and works.

    Args:
        status: Answer, as JSON-compatible values, without what is shown beside it.
    """

    def __init__(self, reader: Reader, status: Callable[[], Described]) -> None:
        self._reader = reader
        self._status = status
        self._shown: dict[str, list[Callable[[], object]]] = {}
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._opened = False

    def open(self) -> None:
        """Let `dray status` find this program from now on, until it is closed."""
        with self._lock:
            opened, self._opened = self._opened, True
            if opened or sys.platform != "linux":
                return
            try:
                self._listener = _listen()
            except OSError as error:
                _logger.debug("dray status will not show this program: %s", error)
            else:
                self._reader.watch(self._listener, self._on_call)

    def show(self, subject: str, describe: Callable[[], object]) -> Callable[[], None]:
        """Do as `Engine.show` says."""

        def end() -> None:
            with self._lock, contextlib.suppress(ValueError):  # a second call
                self._shown[subject].remove(describe)

        with self._lock:
            self._shown.setdefault(subject, []).append(describe)
        self.open()
        return end

    def _on_call(self) -> None:
        assert self._listener is not None
        try:
            caller, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # it would be called again at once
                _logger.debug("dray status does not show this program any more: %s", error)
                self.close()
            return
        # Whoever called may have hung up, and the program may be ending.
        with caller, contextlib.suppress(OSError, SystemExit):
            caller.settimeout(_PATIENCE_S)
            if peer_of(caller).user == os.getuid():
                import json  # slow to import, and rarely asked

                caller.sendall(json.dumps(self._answer()).encode(), NO_SIGNAL)

    def _answer(self) -> Described:
        with self._lock:
            shown = {subject: list(given) for subject, given in self._shown.items()}
        try:
            described = {subject: [tell() for tell in given] for subject, given in shown.items()}
            return {**self._status(), **described}
        except Exception as error:
            _logger.debug("this program could not answer dray status", exc_info=True)
            return {"engine": "process", "note": f"its status is unknown: {error!r}"}

    def close(self) -> None:
        """Stop to listen. On the reader's thread, or once that has ended."""
        self._opened = True
        if self._listener is not None:
            self._reader.unwatch(self._listener)
            self._listener.close()
            self._listener = None


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"\0{_prefix()}{os.getpid()}-{os.urandom(8).hex()}")
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


class Peer(NamedTuple):
    """The process at the other end.

    Attributes:
        pid: Its process; 0 if that is in a container which this process does not see into.
    """

    pid: int
    user: int


def peer_of(sock: socket.socket) -> Peer:
    """Return who is at the other end of a Unix socket, as the kernel knows it."""
    if sys.platform != "linux":
        return Peer(0, -1)
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return Peer(pid, user)


def sessions() -> list[Described]:
    """Return the status of every program of this user on this machine, with its pid."""
    found: list[Described] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for name in _names():
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            with contextlib.suppress(OSError):  # it has just ended
                caller.connect(f"\0{name}")
                peer = peer_of(caller)
                if peer.user == os.getuid():
                    entry: dict[str, Any] = {"pid": peer.pid or _pid_in(name)}
                    if not peer.pid:
                        entry["note"] = "in another container"
                    selector.register(caller, selectors.EVENT_READ, (entry, bytearray()))
                    continue
            caller.close()
        for entry, answer in _hear(selector):
            found.append({**answer, **entry})
    return sorted(found, key=lambda entry: int(entry["pid"]))


def _hear(selector: selectors.BaseSelector) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return what those who were called have answered, for all in the same time."""
    import json  # slow to import

    heard = []
    deadline = time.monotonic() + _PATIENCE_S
    while selector.get_map() and (left := deadline - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            entry, data = key.data
            piece = b""
            with contextlib.suppress(OSError):
                piece = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            data += piece
            if not piece:
                selector.unregister(key.fileobj)
                with contextlib.suppress(ValueError):  # it has just ended
                    heard.append((entry, json.loads(data)))
    silent = {"engine": "process", "note": "it does not answer"}
    return heard + [(key.data[0], silent) for key in selector.get_map().values()]


def _names() -> list[str]:
    prefix = f"@{_prefix()}"
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:  # only Linux has it
        return []
    names = (line.rpartition(" ")[2] for line in text.splitlines())  # others' may hold anything
    return [name[1:] for name in dict.fromkeys(names) if name.startswith(prefix)]


def _pid_in(name: str) -> int:
    """Return the pid that a program has for itself."""
    pid = name.removeprefix(_prefix()).partition("-")[0]
    return int(pid) if pid.isdigit() else 0
