"""The rendezvous of JAX's ranks, and strangers who fill it."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

pytest.importorskip("jaxlib", reason="JAX is not installed")

from dray.train.jax.rendezvous import RendezvousInfo, join_rendezvous, open_rendezvous

STRANGERS = 100


@contextlib.contextmanager
def files_left(count: int) -> Iterator[None]:
    """Let this process open not many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def calls() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


def call(info: RendezvousInfo, said: bytes, calls: contextlib.ExitStack) -> socket.socket:
    sock = calls.enter_context(socket.create_connection((info.address, info.port), 30))
    sock.sendall(said)
    return sock


def test_ranks_meet_among_more_strangers_than_files_can_be_opened(
    calls: contextlib.ExitStack,
) -> None:
    info = open_rendezvous("127.0.0.1", 60)
    silent = [call(info, b"", calls) for _ in range(STRANGERS)]
    wrong = call(info, bytes(20), calls)
    rank = call(info, info.token + (1).to_bytes(4, "big"), calls)
    with files_left(10):
        join_rendezvous(info, 0, 2)
    assert rank.recv(1) == b"!"
    assert {stranger.recv(1) for stranger in (*silent, wrong)} == {b""}
