"""The channel from workers on other nodes to the driver: TCP on which both ends prove a key.

A worker opens three connections: one for the protocol of `wire.py`, and one each for its standard
output and error. The driver listens on its node's address only, on a port that the system picks.
The key is new for every engine, and Ray carries it to the workers. As in Ray itself, messages are
not encrypted: dray trusts the cluster's network not to be altered.
"""

from __future__ import annotations

import contextlib
import errno
import platform
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import NamedTuple

from dray.engines.rpc.io_thread import Reader
from dray.version import VERSION

_HANDSHAKE_S = 10
# Callers that may be about to prove the key; the oldest one makes room for the next, for who has
# the key proves it in milliseconds.
_MOST_UNPROVED = 512
# When to give up the other machine: in seconds, and for what was sent to it in milliseconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}
# Of dray and Python; what is pickled by one minor version of Python may not load in another.
VERSIONS = (VERSION, ".".join(platform.python_version_tuple()[:2]))


class DriverAddress(NamedTuple):
    """The address and key by which a worker reaches its driver.

    Attributes:
        key: Key that both sides prove to have.
    """

    host: str
    port: int
    key: bytes
    number: int


class Hello(NamedTuple):
    """The first thing a worker says on a connection.

    Attributes:
        stream: "wire", "stdout" or "stderr".
        address: That node's address.
        devices: Resource name to the ids of the devices it holds.
    """

    number: int
    stream: str
    pid: int
    node_id: str
    address: str
    devices: Mapping[str, Sequence[str]]
    versions: tuple[str, str] = VERSIONS


class WorkerListener:
    """The driver's end: listens, and hands over connections that have proved the key.

    Args:
        on_hello: Gets what a worker said, and the connection, in the reader's thread.
    """

    def __init__(
        self, host: str, reader: Reader, on_hello: Callable[[Hello, Connection], None]
    ) -> None:
        self._reader = reader
        self._on_hello = on_hello
        self._key = secrets.token_bytes(32)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self._unproved: list[Connection] = []
        self._address = self._listener.getsockname()[:2]
        reader.watch(self._listener, self._on_call)

    def address(self, number: int) -> DriverAddress:
        """Return what the worker with this number must know."""
        host, port = self._address
        return DriverAddress(host, port, self._key, number)

    def _on_call(self) -> None:
        if len(self._unproved) < _MOST_UNPROVED:
            try:
                caller, _ = self._listener.accept()
                caller.setblocking(True)
                _tune(caller)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):  # it has hung up already
                    return
            else:
                self._greet(Connection(caller.detach()))
                return
        if self._unproved:
            with contextlib.suppress(OSError), _socket_of(self._unproved[0]) as oldest:
                oldest.shutdown(socket.SHUT_RDWR)
        self._reader.rest(self._listener)

    def _greet(self, connection: Connection) -> None:
        """Have a caller prove the key, in a thread: one that says nothing holds up nobody else."""
        self._unproved.append(connection)
        greeting = threading.Thread(
            target=self._shake_hands, args=(connection,), name="dray-handshake", daemon=True
        )
        try:
            greeting.start()
        except RuntimeError:  # there is no room for it
            self._unproved.remove(connection)
            connection.close()

    def _shake_hands(self, connection: Connection) -> None:
        hello: Hello | None = None
        try:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                hello = connection.recv()
                _set_patience(connection, 0)
        finally:
            self._reader.run(lambda: self._on_end(connection, hello))

    def _on_end(self, connection: Connection, hello: Hello | None) -> None:
        self._unproved.remove(connection)
        if hello is None:
            connection.close()
        else:
            self._on_hello(hello, connection)
        self._reader.end_rests()  # of the listener, if it had no room

    def close(self) -> None:
        """Stop to listen, once the reader has ended."""
        self._reader.unwatch(self._listener)
        self._listener.close()


def call(address: DriverAddress, hello: Hello) -> Connection:
    """Open a connection to the driver, in a worker.

    Raises:
        OSError: The driver cannot be reached, or has another key.
    """
    try:
        caller = socket.create_connection((address.host, address.port), timeout=_HANDSHAKE_S)
    except OSError as error:
        raise ConnectionError(
            f"the worker cannot reach its driver at {address.host}:{address.port} ({error}); the "
            "driver must run on a node of the cluster, and nodes must let each other connect"
        ) from error
    caller.settimeout(None)
    _tune(caller)
    connection = Connection(caller.detach())
    try:
        answer_challenge(connection, address.key)
        deliver_challenge(connection, address.key)
    except (AuthenticationError, EOFError) as error:
        connection.close()
        raise ConnectionError(
            f"{address.host}:{address.port} is not this worker's driver"
        ) from error
    connection.send(hello)
    _set_patience(connection, 0)
    return connection


def _tune(sock: socket.socket) -> None:
    """Send small messages at once, and notices within seconds that the other machine is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _HANDSHAKE_S, 0))


def _set_patience(connection: Connection, seconds: int) -> None:
    """Set how long a read may take; 0 is without limit."""
    with _socket_of(connection) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


@contextlib.contextmanager
def _socket_of(connection: Connection) -> Iterator[socket.socket]:
    """Yield the socket that a connection goes through, which takes no descriptor."""
    sock = socket.socket(fileno=connection.fileno())
    try:
        yield sock
    finally:
        sock.detach()
