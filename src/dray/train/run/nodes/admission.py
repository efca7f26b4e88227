"""Admission control: requests for a run's resources, and messages while they wait."""

from __future__ import annotations

import bisect
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from dray.engines.base import Engine, Mailbox
from dray.errors import DrayError, EngineError, InfeasibleError, StartTimeoutError, WorkerDiedError
from dray.scheduling.requests import Reservation
from dray.train.backend import Backend, BackendConfig
from dray.train.config import RunConfig
from dray.train.planning.plan import choose_size, make_plan, sizes_with_room
from dray.train.run.events import Alarm, Reserved, Signal
from dray.train.run.output.progress import Progress
from dray.train.scaling import ScalingConfig

# Waits that are shorter are not worth a line.
_WORTH_A_LINE_S = 1.0
# Seconds between looks at what a run waits for, since no engine tells of a change.
_LOOK_AGAIN_S = 5.0
# Seconds that an engine may take to grant free resources, however short the limit.
_GRANT_S = 10.0


@dataclass
class Admission:
    """Asks an engine for what a run needs, until it has it or has waited too long.

    Attributes:
        backend: The framework, for the plan.
        mailbox: Gets `Reserved` and `Signal.STILL_WAITING`.
        size: Number of workers it asks for, or has.
    """

    engine: Engine
    scaling: ScalingConfig
    config: RunConfig
    backend: tuple[Backend, BackendConfig]
    progress: Progress
    mailbox: Mailbox
    limit_s: float
    size: int = field(init=False)
    reservation: Reservation | None = None
    _asked: Future[Reservation] | None = None
    _since: float = math.inf
    _grants_until: float = -math.inf  # until then, resources just granted may still look taken
    _last_message: str = ""

    def __post_init__(self) -> None:
        self.size = self.scaling.min_workers if self.engine.distributed else 1
        self._alarm = Alarm(self.mailbox)

    def ask(self, wanted: int = 0) -> None:
        """Ask for as many workers as fit, or for the least of them; the mailbox hears of it.

        `Reserved` is the answer, for `granted`. While there is none, `Signal.STILL_WAITING` comes
        from time to time, for `look`.

        Args:
            wanted: Number to ask for at first, as so many will fit; 0 looks.
        """
        self._since = time.monotonic()
        self._last_message = ""
        if wanted:
            self._request(wanted, fits=True)
        else:
            self._ask()

    def _ask(self) -> None:
        size, fits = self.size, False
        if self.scaling.elasticity_enabled:
            size, preview = choose_size(self.engine, self.scaling)
            fits = preview.fits
        elif self.engine.distributed and self.limit_s < _GRANT_S:
            fits = self.engine.preview(self.scaling.request(size)).fits
        self._request(size, fits)

    def _look_later(self) -> None:
        if self._asked is not None and not self._asked.done():
            self._alarm.set(self._next_look_s(), Signal.STILL_WAITING)

    def _request(self, size: int, fits: bool) -> None:
        self.size = size
        soon = fits and self.engine.distributed
        self._grants_until = time.monotonic() + _GRANT_S if soon else -math.inf
        self._asked = self.engine.reserve(self.scaling.request(size))
        self._asked.add_done_callback(lambda future: self.mailbox.put(Reserved(future)))
        self._look_later()

    def _next_look_s(self) -> float:
        waited = time.monotonic() - self._since
        usual = _LOOK_AGAIN_S if waited >= _WORTH_A_LINE_S else _WORTH_A_LINE_S
        left = self.limit_s - waited
        return min(usual, left) if left > 0 else usual

    def granted(self, future: Future[Reservation]) -> bool:
        """Take an answer; return whether the run can start.

        Raises:
            DrayError: There will be no resources.
        """
        if future is not self._asked:  # asked for something else since
            if not future.cancelled() and future.exception() is None:
                future.result().release()
            return False
        self._alarm.cancel()
        self._asked = None
        if future.cancelled():
            raise EngineError("dray.shutdown() was called while fit() waited for resources")
        try:
            self.reservation = future.result()
        except WorkerDiedError:  # a node went amid the answer; others may do
            if time.monotonic() - self._since >= self.limit_s:
                raise
            self._ask()
            return False
        if self.scaling.elasticity_enabled and self.engine.distributed:
            self.grow()
        return True

    def grow(self) -> None:
        """Take as much more as there is room for, if the engine can exchange what it has given."""
        assert self.reservation is not None
        sizes = sizes_with_room(self.engine, self.scaling)
        sizes = sizes[bisect.bisect_right(sizes, self.size) :]
        while sizes:
            middle = len(sizes) // 2
            larger = self.reservation.exchange(self.scaling.request(sizes[middle]))
            if larger is None:
                sizes = sizes[:middle]
            else:
                self.reservation, self.size = larger, sizes[middle]
                sizes = sizes[middle + 1 :]

    def look(self) -> DrayError | None:
        """Say what is waited for if that has changed; return why to wait no longer, if so."""
        error = self._look()
        if error is None:
            self._look_later()
        return error

    def _look(self) -> DrayError | None:
        if self._asked is None or self._asked.done():
            return None  # the answer is in the mailbox
        now = time.monotonic()
        waited_s, coming = now - self._since, now < self._grants_until
        if self.scaling.elasticity_enabled and waited_s < self.limit_s:
            size, preview = choose_size(self.engine, self.scaling)
            if preview.fits and (size > self.size or (size < self.size and not coming)):
                self.release()
                self._request(size, fits=True)
                return None
        plan = make_plan(self.engine, self.scaling, self.config, self.backend)
        why = plan.why or (
            "the resources it asks for are free, but not granted yet; earlier requests are "
            "served first."
        )
        if not coming and waited_s >= max(self.limit_s, _GRANT_S if plan.fits else 0.0):
            lacking = self.engine.lacking(self.scaling.request(self.size))
            if lacking is not None:
                return InfeasibleError(why, asked=lacking.asked, available=lacking.available)
            return StartTimeoutError(self.limit_s, why)
        if why != self._last_message and not coming:
            self._last_message = why
            self.progress.warn(f"waiting up to {self.limit_s:g} s for resources: {why}")
        return None

    @property
    def is_broken(self) -> bool:
        """True if what it has lies on a node that is gone."""
        return self.reservation is not None and self.reservation.broken

    def release(self) -> None:
        """Give back what it has, and take back what it asks for."""
        self._alarm.cancel()
        asked, self._asked = self._asked, None
        if asked is not None and not asked.cancel() and asked.exception() is None:
            asked.result().release()
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            reservation.release()
