"""Events that come later."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from dray.engines.base import Mailbox
from dray.errors import EngineError


@dataclass(frozen=True)
class Due:
    """The time of an event has come.

    Attributes:
        alarm: Who sent it.
        number: Which one of its events.
        event: The event.
    """

    alarm: Alarm
    number: int
    event: Any

    @property
    def counts(self) -> bool:
        """Return whether the event was not taken back while it lay in the mailbox."""
        return self.alarm.number == self.number


class Alarm:
    """Puts an event into a mailbox later; at most one is on its way.

    Args:
        mailbox: Gets a `Due` that has the event.

    Attributes:
        number: The number of the latest event.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self.number = 0
        self._mailbox = mailbox
        self._timer: threading.Timer | None = None
        self._latest: tuple[float, Any] = (0.0, None)

    def set(self, delay_s: float, event: Any) -> None:
        """Have an event come, in place of the one before.

        Raises:
            EngineError: There is no room for its thread.
        """
        self.cancel()
        self._latest = delay_s, event
        self._timer = threading.Timer(delay_s, self._mailbox.put, [Due(self, self.number, event)])
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError as error:
            raise EngineError(
                f"{error}: the limit of processes and threads (ulimit -u, or a container's) is "
                "met; raise it, or use fewer workers"
            ) from error

    def renew(self) -> None:
        """Have the event that is on its way, if there is one, come as late from now on."""
        if self._timer is not None:
            self.set(*self._latest)

    def cancel(self) -> None:
        """Take the event back, even if it is in the mailbox already."""
        self.number += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
