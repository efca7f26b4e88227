"""Work beside the train function, in a thread of its own; a later report raises its failures."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Beside:
    """One thread, which does one thing after another.

    Args:
        thread: Its name.

    Attributes:
        error: The first failure, until `check` raises it.
    """

    def __init__(self, thread: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread)
        self._last: Future[None] | None = None
        self.error: BaseException | None = None

    def submit(self, work: Callable[[T], object], argument: T) -> None:
        """Have something done once all before it is; `check` raises what goes wrong."""
        self._last = self._thread.submit(self._do, work, argument)

    def _do(self, work: Callable[[T], object], argument: T) -> None:
        try:
            work(argument)
        except BaseException as error:  # noqa: BLE001 (a later report of the rank raises it)
            self.error = self.error or error

    def wait(self) -> None:
        """Wait until all is done, or has failed."""
        if self._last is not None:  # which comes after all others
            self._last.result()

    def check(self) -> None:
        """Raise what has failed, once."""
        error = self.error
        if error is not None:
            self.error = None
            raise error.with_traceback(None)  # all of it is of files of dray

    def close(self) -> None:
        """Wait for what has begun, and end the thread."""
        self._thread.shutdown()
