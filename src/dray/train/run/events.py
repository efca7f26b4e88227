"""Events of the controller's mailbox besides those of the engine, and their alarms."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from dray.engines.base import Actor, Mailbox
from dray.engines.rpc.io_thread import start_thread
from dray.scheduling.requests import Reservation
from dray.train.storage.manifest import Committed
from dray.train.worker.train_worker import Ended


class Signal(Enum):
    """An event that says no more than that it has come."""

    STILL_WAITING = "the reservation has not been granted yet"
    STILL_STARTING = "workers take long to start"
    BACKED_OFF = "it is time to restart"
    ENGINE_CLOSED = "the session has ended, in another thread"
    STOP_REQUESTED = "a callback has said that the training has come far enough"
    GRACE_EXPIRED = "reports that have not come by now will not come"
    READ_REPORTS = "ranks may have left reports in their files"
    LOOK_AT_WAITS = "somebody may have waited for long"
    LOOK_AT_VALIDATION = "a validation takes long"
    NODES_LEAVE = "nodes of the engine may be about to be taken away"
    NODES_OVERDUE = "it is time to leave the nodes that are to be taken away"
    RETRY_VALIDATION = "a validation that the engine has failed is to start again"


@dataclass(frozen=True)
class Reserved:
    """The reservation has been granted."""

    future: Future[Reservation]


@dataclass(frozen=True)
class FunctionReturned:
    """The train function of a rank has returned."""

    actor: Actor
    ended: Ended


@dataclass(frozen=True)
class FunctionFailed:
    """The train function of a rank has raised."""

    actor: Actor
    error: BaseException


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C, or ends the program otherwise."""

    cause: str


@dataclass(frozen=True)
class ValidationEnded:
    """The task that validates a checkpoint has ended."""

    committed: Committed
    future: Future[Any]


@dataclass(frozen=True)
class ValidationTimedOut:
    """A validation has taken as long as it may."""

    after_s: float


OfValidation: TypeAlias = ValidationEnded | ValidationTimedOut | Signal


@dataclass(frozen=True)
class Due:
    """The time of an event has come."""

    alarm: Alarm
    number: int
    event: object

    @property
    def counts(self) -> bool:
        """Return whether the event was not taken back while it lay in the mailbox."""
        return self.alarm.number == self.number


class Alarm:
    """Puts an event into a mailbox later; at most one is on its way.

    Args:
        mailbox: Gets a `Due` that has the event.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self.number = 0
        self._mailbox = mailbox
        self._timer: threading.Timer | None = None
        self._latest: tuple[float, object] = (0.0, None)

    def set(self, delay_s: float, event: object) -> None:
        """Have an event come, in place of the one before.

        Raises:
            EngineError: There is no room for its thread.
        """
        self.cancel()
        self._latest = delay_s, event
        self._timer = threading.Timer(delay_s, self._mailbox.put, [Due(self, self.number, event)])
        self._timer.daemon = True
        start_thread(self._timer)

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
