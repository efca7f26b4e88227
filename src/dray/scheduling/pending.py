"""Requests for resources that are not answered yet, which end with their engine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class PendingRequests:
    """Requests that are not answered yet; `close()` cancels them."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()
        self._closed = False

    def add(self, future: Future[T]) -> Future[T]:
        """Take a request and return it; one that comes too late is cancelled at once."""
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if self._closed:
            future.cancel()
        return future

    def close(self) -> None:
        """Cancel what is not answered, and all that comes from now on."""
        self._closed = True
        for future in list(self._futures):
            future.cancel()
