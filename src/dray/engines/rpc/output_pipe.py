"""The descriptors from which a driver reads the output of a process."""

from __future__ import annotations

import os
from collections.abc import Callable

from dray.engines.rpc.io_thread import Reader


class OutputPipe:
    """One such descriptor, as its owner; it is closed at its end, or when reading fails.

    Args:
        take: Takes each piece in the reader's thread, and an empty one at the end.
    """

    def __init__(
        self,
        reader: Reader,
        fd: int,
        take: Callable[[bytes], object],
        on_close: Callable[[], object],
    ) -> None:
        self._reader = reader
        self._fd = fd
        self._take = take
        self._on_close = on_close
        self.is_open = True
        os.set_blocking(fd, False)

    def watch(self) -> None:
        """Begin to read."""
        self._reader.watch(self._fd, self._read, lambda _: self.close())

    def _read(self) -> bool:
        """Take a piece; return whether there may be more now."""
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._take(data)
        if not data:
            self.close()
        return bool(data)

    def drain(self) -> None:
        """Take what is there now."""
        while self.is_open and self._read():
            pass

    def finish(self) -> None:
        """Take what is there now as the last, though others may hold the far end, and close."""
        self.drain()
        if self.is_open:
            self._take(b"")
            self.close()

    def close(self) -> None:
        """Read no more; a second call does nothing."""
        if self.is_open:
            self.is_open = False
            self._reader.unwatch(self._fd)
            os.close(self._fd)
            self._on_close()
