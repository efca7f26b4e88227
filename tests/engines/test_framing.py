"""Frames of the hub's messages: whatever pieces they come in, and without waiting for the rest."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest

from dray.engines.rpc.framing import Inbox, Message, encode

MESSAGES = [("small", 1), ("large", b"x" * 700_000), ("middle", b"y" * 65_000), ("last", 2)]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


@pytest.mark.parametrize("seed", range(20))
def test_messages_come_whole_in_whatever_pieces(
    pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    ours, theirs = pair
    inbox, chance = Inbox(ours), random.Random(seed)
    heard: list[Message] = []
    data = b"".join(map(encode, MESSAGES)) + encode(MESSAGES)
    while data:
        size = chance.choice((1, 3, 100, 65_536, 150_000))
        theirs.sendall(data[:size])
        data = data[size:]
        while (messages := inbox.receive()) or inbox.has_more:
            heard += messages or ()
        assert messages == []
    assert heard == MESSAGES * 2
    theirs.close()
    assert inbox.receive() is None


def test_the_rest_of_a_message_is_not_waited_for(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    inbox, data = Inbox(ours), encode(MESSAGES[1])
    theirs.sendall(data[:100_000])
    while (messages := inbox.receive()) or inbox.has_more:
        pass
    assert (messages, inbox.amid, ours.getblocking()) == ([], True, False)
    theirs.close()
    assert inbox.receive() is None
