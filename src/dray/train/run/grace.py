"""Grace periods for reports that may never come, once a run stops or a rank has failed."""

from __future__ import annotations

from dray.errors import join_names
from dray.settings import Settings
from dray.train.run.attempt import Attempt
from dray.train.run.events import Alarm, StopGraceExpired
from dray.train.run.progress import Progress
from dray.train.run.state import AT_WORK, State


class Grace:
    """The time that ranks are given.

    Args:
        alarm: Sends `StopGraceExpired` at its end; it ends with the state in which it was set.
        progress: Tells the user.
        settings: How long it is.

    Attributes:
        after_failure_s: How long it is once a rank has failed.
    """

    def __init__(self, alarm: Alarm, progress: Progress, settings: Settings) -> None:
        self._alarm = alarm
        self._progress = progress
        self.after_failure_s = settings.report_grace_s
        self._stopping_s = {
            State.STOPPING: settings.stop_grace_s,
            # Nobody waits for the run that a callback has ended, as somebody does after Ctrl-C.
            State.CONCLUDING: settings.conclude_grace_s,
        }

    def give(self, state: State, attempt: Attempt) -> None:
        """Wait from now on."""
        seconds = self._stopping_s.get(state) if not attempt.failures else None
        self._alarm.set(self.after_failure_s if seconds is None else seconds, StopGraceExpired())

    def renew(self, state: State, attempt: Attempt) -> None:
        """Begin to wait anew, as a report has come: the others are on their way as well."""
        if state in self._stopping_s and not attempt.failures:
            self._alarm.renew()

    def is_over(self, state: State, attempt: Attempt) -> bool:
        """Return whether to wait no longer: what every rank has reported is not given up."""
        to_commit = attempt.to_commit() if state in AT_WORK else []
        if to_commit:
            attempt.patient = False
            reports = join_names([str(report) for report in to_commit])
            self._progress.warn(f"files of report {reports} are still being copied")
            self.give(state, attempt)
        elif state in self._stopping_s and not attempt.failures:
            seconds = self._stopping_s[state]
            self._progress.warn(f"no report came within {seconds:g} s; stopping at once")
        return not to_commit
