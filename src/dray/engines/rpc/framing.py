"""Framing of the hub's messages on a stream socket: a length, then a pickled tuple or several."""

from __future__ import annotations

import pickle
import socket
import struct
from collections import deque
from typing import Any

from dray.engines.rpc.sockets import NO_SIGNAL

Message = tuple[Any, ...]  # a word, and what it takes
Frame = bytes | memoryview  # a message as it came, without its length
_HEAD = 4
_LENGTH = struct.Struct(">I")
_LONG_HEAD, _LONG = 12, (1 << 32) - 1  # of `multiprocessing`, which does not stop at 2 GiB
# Python allocates as much for each read, and gives it back; more than this takes system calls.
_CHUNK = 1 << 16


def encode(message: Message | list[Message]) -> bytes:
    """Return a message, or several in one frame, which costs less, as it goes over the socket."""
    body = pickle.dumps(message, 5)
    return _LENGTH.pack(len(body)) + body


class Inbox:
    """The messages that have come in on a socket so far.

    Attributes:
        has_more: Whether the last read has filled its room, so that there may be more.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""
        self._large: tuple[bytearray, int] | None = None  # with where its message begins
        self._filled = 0  # bytes of it that have come in
        self.has_more = False

    @property
    def amid(self) -> bool:
        """True while a part of a message has come in, and not all of it."""
        return bool(self._rest) or self._large is not None

    def receive(self, flags: int = 0) -> list[Message] | None:
        """Read once; return the messages that are whole now, or None at the stream's end."""
        frames = self.receive_raw(flags)
        if frames is None:
            return None
        messages: list[Message] = []
        for frame in frames:
            found = pickle.loads(frame)
            if type(found) is list:
                messages += found
            else:
                messages.append(found)
        return messages

    def receive_raw(self, flags: int = 0) -> list[Frame] | None:
        """The same; returns the messages as they came over the socket."""
        self.has_more = False
        if self._large is not None:
            return self._fill(*self._large, flags)
        try:
            data = self._sock.recv(_CHUNK, flags)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data:
            return None
        if self._rest:
            data = self._rest + data
        self.has_more = len(data) >= _CHUNK
        frames: list[Frame] = []
        at, size = 0, len(data)
        while size - at >= _HEAD:
            start = at + _HEAD
            (length,) = _LENGTH.unpack_from(data, at)
            if length == _LONG:
                if size - at < _LONG_HEAD:
                    break
                length = int.from_bytes(data[start : at + _LONG_HEAD], "big")
                start = at + _LONG_HEAD
            end = start + length
            if end > size:
                if end - size > _CHUNK:
                    whole = bytearray(end - at)
                    whole[: size - at] = data[at:]
                    self._large, self._filled = (whole, start - at), size - at
                    self._rest, self.has_more = b"", True
                    return frames or self._fill(whole, start - at, flags)
                break
            frames.append(data[start:end])
            at = end
        self._rest = data[at:]
        return frames

    def _fill(self, whole: bytearray, start: int, flags: int) -> list[Frame] | None:
        """Read more of a large message, so that it is put together only once."""
        view = memoryview(whole)[self._filled :]
        self.has_more = False
        try:
            while view:
                count = self._sock.recv_into(view, 0, flags)
                if not count:
                    return None
                self._filled += count
                view = view[count:]
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        self._large, self.has_more = None, True
        return [memoryview(whole)[start:]]


class Outbox:
    """The messages that go out on a socket that must never block."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent: deque[bytes] = deque()

    def send(self, data: bytes) -> bool:
        """Send as much as goes now; return whether all has gone."""
        if self._unsent:
            self._unsent.append(data)
            return False
        return self._push(data)

    def flush(self) -> bool:
        """Send more of what is left; return whether all has gone."""
        while self._unsent:
            if not self._push(self._unsent.popleft(), front=True):
                return False
        return True

    def _push(self, data: bytes, *, front: bool = False) -> bool:
        sent = 0
        try:
            sent = self._sock.send(data, NO_SIGNAL)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # the worker is gone; its end is told elsewhere
            self._unsent.clear()
            return True
        if sent == len(data):
            return True
        (self._unsent.appendleft if front else self._unsent.append)(data[sent:])
        return False
