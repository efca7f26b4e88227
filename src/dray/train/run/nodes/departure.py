"""The departure of a run from nodes that are about to be taken away, and its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dray.engines.base import Engine, Mailbox
from dray.train.config import FailureConfig
from dray.train.run.attempt import Attempt
from dray.train.run.events import Alarm, Signal
from dray.train.run.nodes.preemptions import Preemptions
from dray.train.run.output.progress import Progress


@dataclass
class Departure:
    """Tells a run's mailbox when to look at its nodes, and when to leave those that go."""

    engine: Engine
    mailbox: Mailbox
    progress: Progress
    allowed: FailureConfig

    def __post_init__(self) -> None:
        self._alarm = Alarm(self.mailbox)
        self._end: Callable[[], None] = lambda: None

    def preemptions(self) -> Preemptions:
        """Return what is known of the nodes of a new attempt: nothing yet."""
        return Preemptions(self.engine.nodes, self.progress.warn, self.allowed)

    def begin(self) -> None:
        """Hear of the engine's nodes from now on; those of before are looked at once."""
        self.end()
        self._end = self.engine.watch_leaving(lambda: self.mailbox.put(Signal.NODES_LEAVE))
        self.mailbox.put(Signal.NODES_LEAVE)

    def look(self, attempt: Attempt) -> None:
        """Look at an attempt's nodes, and have the run leave those that go once it is time."""
        attempt.preemptions.look(attempt.group.positions)
        if attempt.preemptions.info is not None:
            self._alarm.set(attempt.preemptions.left_s, Signal.NODES_OVERDUE)

    def end(self) -> None:
        """Hear and tell nothing any more."""
        self._end()
        self._end = lambda: None
        self._alarm.cancel()
