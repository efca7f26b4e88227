"""Rendezvous of JAX's ranks before JAX connects them, so that an error can name missing ranks."""

from __future__ import annotations

import contextlib
import errno
import secrets
import selectors
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

from dray.errors import join_names

_TOKEN_BYTES = 16
_RANK_BYTES = 4
_GO_ON = b"!"
# The other ranks wait so many seconds longer than rank 0, which knows the missing ranks.
_RANK_ZERO_FIRST_S = 5.0


class RendezvousInfo(NamedTuple):
    """The address of a rendezvous.

    Attributes:
        address: Address of rank 0's node.
        port: Port on which rank 0 listens.
        token: Secret that only ranks of this run have.
        timeout_s: Time limit in seconds for the ranks to connect.
    """

    address: str
    port: int
    token: bytes
    timeout_s: float


class _Opened(NamedTuple):
    """The rendezvous that this process has opened, and its deadline."""

    listener: socket.socket
    deadline: float


_opened: _Opened | None = None
# Connections of ranks that wait although others are missing; they are closed with this process.
_kept: list[contextlib.ExitStack] = []


def open_rendezvous(address: str, timeout_s: float) -> RendezvousInfo:
    """Listen for the other ranks, on rank 0; the time limit starts now."""
    global _opened
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=1024)
    _opened = _Opened(listener, time.monotonic() + timeout_s)
    port: int = listener.getsockname()[1]
    return RendezvousInfo(address, port, secrets.token_bytes(_TOKEN_BYTES), timeout_s)


def join_rendezvous(info: RendezvousInfo, rank: int, world_size: int) -> None:
    """Wait until all ranks have called this function.

    Raises:
        TimeoutError: Some ranks have not called it in time; the message names them.
        ConnectionError: Rank 0 cannot be reached, or has ended.
    """
    if rank > 0:
        _join_as_other(info, rank)
    else:
        _join_as_first(info, world_size)


def _join_as_first(info: RendezvousInfo, world_size: int) -> None:
    """Wait for the other ranks, then tell them to continue.

    If some are missing, the others wait until their run ends, so that the first error is that of
    rank 0, which names the missing ranks.
    """
    global _opened
    opened, _opened = _opened, None
    assert opened is not None
    with contextlib.ExitStack() as sockets:
        sockets.enter_context(opened.listener)
        missing, here = set(range(1, world_size)), []
        for rank, peer in _arrivals(info, opened, sockets):
            here.append(peer)
            missing.discard(rank)
            if not missing:
                break
        if missing:
            _kept.append(sockets.pop_all())
            raise TimeoutError(_absence(info, sorted(missing)))
        for peer in here:
            with contextlib.suppress(OSError):  # it has ended, and the driver notices that itself
                peer.sendall(_GO_ON)


def _arrivals(
    info: RendezvousInfo, opened: _Opened, sockets: contextlib.ExitStack
) -> Iterator[tuple[int, socket.socket]]:
    """Yield the ranks that connect until the deadline, each with its connection."""
    size = _TOKEN_BYTES + _RANK_BYTES
    with selectors.DefaultSelector() as selector:
        selector.register(opened.listener, selectors.EVENT_READ)
        while ready := selector.select(max(0.0, opened.deadline - time.monotonic())):
            for key, _ in ready:
                if key.fileobj is opened.listener:
                    new = sockets.enter_context(_accept(opened.listener, selector))
                    selector.register(new, selectors.EVENT_READ, bytearray())
                    continue
                peer, received = key.fileobj, key.data
                assert isinstance(peer, socket.socket)
                if peer.fileno() < 0:  # closed by _accept
                    continue
                try:
                    chunk = peer.recv(size - len(received))
                except OSError:
                    chunk = b""
                received += chunk
                if chunk and len(received) < size:
                    continue
                selector.unregister(peer)
                if secrets.compare_digest(received[:_TOKEN_BYTES], info.token):
                    yield int.from_bytes(received[_TOKEN_BYTES:], "big"), peer
                else:
                    peer.close()


def _accept(listener: socket.socket, selector: selectors.BaseSelector) -> socket.socket:
    """Accept a connection; if no more files can be opened, close the oldest unproved connection.

    Raises:
        OSError: This process has too many files open, and no unproved connection.
    """
    while True:
        try:
            return listener.accept()[0]
        except OSError as error:
            others = (key.fileobj for key in selector.get_map().values())
            oldest = next((one for one in others if one is not listener), None)
            if error.errno not in (errno.EMFILE, errno.ENFILE) or oldest is None:
                raise
            assert isinstance(oldest, socket.socket)
            selector.unregister(oldest)
            oldest.close()


def _absence(info: RendezvousInfo, missing: list[int]) -> str:
    ranks = join_names([str(rank) for rank in missing])
    return (
        f"{'ranks' if len(missing) > 1 else 'rank'} {ranks} did not come to "
        f"{info.address}:{info.port} within {info.timeout_s:g} s; see the logs, and check that "
        "nodes can connect to each other at any port, or raise timeout_s"
    )


def _join_as_other(info: RendezvousInfo, rank: int) -> None:
    """Send this rank to rank 0, and wait for its answer."""
    address, port, token, timeout_s = info
    message = token + rank.to_bytes(_RANK_BYTES, "big")
    try:
        with socket.create_connection((address, port), timeout_s + _RANK_ZERO_FIRST_S) as sock:
            sock.sendall(message)
            answer = sock.recv(len(_GO_ON))
    except TimeoutError:
        raise TimeoutError(
            f"rank 0 did not answer at {address}:{port} within {timeout_s:g} s; see its log, and "
            "check that nodes can connect to each other at any port, or raise timeout_s"
        ) from None
    except OSError as error:
        raise ConnectionError(
            f"rank 0 cannot be reached at {address}:{port} ({error}); check that nodes can "
            "connect to each other at any port"
        ) from error
    if not answer:
        raise ConnectionError(
            f"rank 0, which should meet the others at {address}:{port}, has ended"
        )
