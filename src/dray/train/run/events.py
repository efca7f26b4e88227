"""Events of the controller's mailbox besides those of the engine, and the outcome of a run."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dray.engines.base import Actor
from dray.scheduling.requests import Reservation
from dray.train.run.state import State
from dray.train.run.worker_group import WorkerState
from dray.train.worker.train_worker import Ended


@dataclass(frozen=True)
class Reserved:
    """The reservation has been granted."""

    future: Future[Reservation]


@dataclass(frozen=True)
class StillWaiting:
    """The reservation has not been granted yet."""


@dataclass(frozen=True)
class StillStarting:
    """Workers take long to start."""


@dataclass(frozen=True)
class FunctionEnded:
    """The train function of a rank has returned or raised."""

    worker: WorkerState
    future: Future[Ended]

    @property
    def actor(self) -> Actor:
        """The actor whose function it was."""
        return self.worker.actor


@dataclass(frozen=True)
class BackedOff:
    """It is time to restart."""


@dataclass(frozen=True)
class EngineClosed:
    """The session has ended, in another thread."""


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C, or ends the program otherwise.

    Attributes:
        cause: How.
    """

    cause: str


@dataclass(frozen=True)
class StopRequest:
    """A callback has said that the training has come far enough."""


@dataclass(frozen=True)
class StopGraceExpired:
    """The grace period is over: reports that have not come by now will not come."""


@dataclass(frozen=True)
class LookAtWaits:
    """Somebody may have waited for long."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        state: One of the final states.
        return_value: What rank 0's function returned.
        error: What `fit()` raises, if it raises.
    """

    state: State
    return_value: Any = None
    error: BaseException | None = None
