"""Grace periods for reports that may never come, once a run stops or a rank has failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dray.errors import join_names
from dray.settings import Settings
from dray.train.run.attempt import Attempt
from dray.train.run.events import Alarm, Signal
from dray.train.run.output.progress import Progress
from dray.train.run.state import AT_WORK, State

_RESIZE_GRACE_S = 1.0


@dataclass(frozen=True)
class Grace:
    """The time that ranks are given to make one more report.

    Attributes:
        alarm: Sends `Signal.GRACE_EXPIRED` at its end; it ends with the state in which it was set.
        after_failure_s: Seconds of grace once a rank has failed.
        stopping_s: Seconds of grace in a state in which the run stops.
    """

    alarm: Alarm
    progress: Progress
    after_failure_s: float
    stopping_s: Mapping[State, float]

    @classmethod
    def of(cls, settings: Settings, alarm: Alarm, progress: Progress) -> Grace:
        """Return the times that the user has chosen."""
        stopping_s = {
            State.STOPPING: settings.stop_grace_s,
            # Nobody waits for the run that a callback has ended, as somebody does after Ctrl-C.
            State.CONCLUDING: settings.conclude_grace_s,
            State.RESIZING: _RESIZE_GRACE_S,
        }
        return cls(alarm, progress, settings.report_grace_s, stopping_s)

    def give(self, state: State, attempt: Attempt) -> None:
        """Wait from now on."""
        seconds = self.stopping_s.get(state) if not attempt.failures else None
        if state is State.DRAINING and attempt.goes_on:
            seconds = attempt.preemptions.left_s
        self.alarm.set(self.after_failure_s if seconds is None else seconds, Signal.GRACE_EXPIRED)

    def renew(self, state: State, attempt: Attempt) -> None:
        """Begin to wait anew, as a report has come: the others are on their way as well."""
        if state in self.stopping_s and not attempt.failures:
            self.alarm.renew()

    def is_over(self, state: State, attempt: Attempt) -> bool:
        """Return whether to wait no longer: what every rank has reported is not given up."""
        to_commit = attempt.to_commit() if state in AT_WORK else []
        if to_commit:
            attempt.patient = False
            reports = join_names([str(report) for report in to_commit])
            self.progress.warn(f"files of report {reports} are still being copied")
            self.give(state, attempt)
        elif state in self.stopping_s and state is not State.RESIZING and not attempt.failures:
            seconds = self.stopping_s[state]
            self.progress.warn(f"no report came within {seconds:g} s; stopping at once")
        return not to_commit
