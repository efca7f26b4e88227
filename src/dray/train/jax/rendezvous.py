"""Rendezvous of ranks before their framework connects them, so that missing ones are named."""

from __future__ import annotations

import contextlib
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
# How much later than rank 0, who knows which ranks have come, the others give up.
_RANK_ZERO_FIRST_S = 5.0


class RendezvousInfo(NamedTuple):
    """The address of a rendezvous.

    Attributes:
        address: Of rank 0's node.
        port: Where rank 0 listens.
        token: What tells ranks of this run from strangers.
        timeout_s: How long ranks may take to come, in seconds.
    """

    address: str
    port: int
    token: bytes
    timeout_s: float


class _Door(NamedTuple):
    listener: socket.socket
    deadline: float


_door: _Door | None = None
# Connections of ranks that wait for others who have not come; they end with this process.
_kept: list[contextlib.ExitStack] = []


def invite(address: str, timeout_s: float) -> RendezvousInfo:
    """Listen for the other ranks, on rank 0; the time runs from now on."""
    global _door
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(1024)
    _door = _Door(listener, time.monotonic() + timeout_s)
    port: int = listener.getsockname()[1]
    return RendezvousInfo(address, port, secrets.token_bytes(_TOKEN_BYTES), timeout_s)


def meet(invitation: RendezvousInfo, rank: int, world_size: int) -> None:
    """Return when all ranks have called it.

    Raises:
        TimeoutError: Some have not in time, and the message names them.
        ConnectionError: Rank 0 cannot be reached, or has ended.
    """
    if rank > 0:
        _go_there(invitation, rank)
    else:
        _receive_all(invitation, world_size)


def _receive_all(invitation: RendezvousInfo, world_size: int) -> None:
    """Wait for the other ranks, then tell them to go on.

    If some are missing, those who have come go on waiting until their run ends, so that what comes
    first is the error of rank 0, who knows.
    """
    global _door
    door, _door = _door, None
    assert door is not None
    with contextlib.ExitStack() as sockets:
        sockets.enter_context(door.listener)
        missing, here = set(range(1, world_size)), []
        for rank, guest in _arrivals(invitation, door, sockets):
            here.append(guest)
            missing.discard(rank)
            if not missing:
                break
        if missing:
            _kept.append(sockets.pop_all())
            raise TimeoutError(_absence(invitation, sorted(missing)))
        for guest in here:
            with contextlib.suppress(OSError):  # it has ended, which the driver hears by itself
                guest.sendall(_GO_ON)


def _arrivals(
    invitation: RendezvousInfo, door: _Door, sockets: contextlib.ExitStack
) -> Iterator[tuple[int, socket.socket]]:
    """Yield the ranks that come until the deadline, each with its connection."""
    size = _TOKEN_BYTES + _RANK_BYTES
    with selectors.DefaultSelector() as selector:
        selector.register(door.listener, selectors.EVENT_READ)
        while ready := selector.select(max(0.0, door.deadline - time.monotonic())):
            for key, _ in ready:
                if key.fileobj is door.listener:
                    guest = sockets.enter_context(door.listener.accept()[0])
                    selector.register(guest, selectors.EVENT_READ, bytearray())
                    continue
                comer, said = key.fileobj, key.data
                assert isinstance(comer, socket.socket)
                try:
                    heard = comer.recv(size - len(said))
                except ConnectionError:
                    heard = b""
                said += heard
                if heard and len(said) < size:
                    continue
                selector.unregister(comer)
                if secrets.compare_digest(said[:_TOKEN_BYTES], invitation.token):
                    yield int.from_bytes(said[_TOKEN_BYTES:], "big"), comer


def _absence(invitation: RendezvousInfo, missing: list[int]) -> str:
    ranks = join_names([str(rank) for rank in missing])
    return (
        f"{'ranks' if len(missing) > 1 else 'rank'} {ranks} did not come to "
        f"{invitation.address}:{invitation.port} within {invitation.timeout_s:g} s; see the logs, "
        "and that nodes may connect to each other at any port, or raise timeout_s"
    )


def _go_there(invitation: RendezvousInfo, rank: int) -> None:
    """Tell rank 0 that this one has come, and wait for its answer."""
    address, port, token, timeout_s = invitation
    message = token + rank.to_bytes(_RANK_BYTES, "big")
    try:
        with socket.create_connection((address, port), timeout_s + _RANK_ZERO_FIRST_S) as way:
            way.sendall(message)
            answer = way.recv(len(_GO_ON))
    except TimeoutError:
        raise TimeoutError(
            f"rank 0 did not answer at {address}:{port} within {timeout_s:g} s; see its log, "
            "and that nodes may connect to each other at any port, or raise timeout_s"
        ) from None
    except OSError as error:
        raise ConnectionError(
            f"rank 0 cannot be reached at {address}:{port} ({error}); see that nodes may connect "
            "to each other at any port"
        ) from error
    if not answer:
        raise ConnectionError(f"rank 0 has ended, which was to meet others at {address}:{port}")
