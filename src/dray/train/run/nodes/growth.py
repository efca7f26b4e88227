"""Growth: the restart of a run with more workers, between its minimum and its maximum."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from dray.train.planning.plan import largest_size, sizes_with_room
from dray.train.run.attempt import Attempt
from dray.train.run.nodes.admission import Admission


@dataclass
class Growth:
    """Looks for room for more workers as checkpoints are committed, once an interval.

    A restart loses the work of ranks after the checkpoint. So ranks that wait for it stop there,
    and the others stop when they report, or a moment later.

    Attributes:
        admission: Has what the workers hold, and asks for more.
        wanted: The number of workers to ask for once what they hold is given back; 0 if it is not.
    """

    admission: Admission
    wanted: int = 0
    _looked_at: float = 0.0

    def begin(self) -> None:
        """Have the first interval begin, with the workers."""
        self.wanted = 0
        self._looked_at = time.monotonic()

    def finds_room(self, attempt: Attempt) -> bool:
        """Return whether the workers are to start again, with others; takes it if it can."""
        admission, scaling = self.admission, self.admission.scaling
        if not (scaling.elasticity_enabled and admission.engine.distributed):
            return False
        now, size = time.monotonic(), admission.size
        soon = now - self._looked_at < scaling.elastic_resize_monitor_interval_s
        if soon or len(attempt.running) < size:
            return False
        self._looked_at = now
        if max(sizes_with_room(admission.engine, scaling), default=0) <= size:
            return False
        admission.grow()
        assert admission.reservation is not None
        if not admission.reservation.can_exchange:
            further = self._fit_beside()
            self.wanted = further and size + further
        found = admission.size > size or self.wanted > 0
        if found:
            admission.progress.warn("there is room for more workers: restarting with them")
        return found

    def _fit_beside(self) -> int:
        """Return how many more workers fit beside those that there are."""
        scaling = self.admission.scaling
        depends = scaling.placement_strategy.startswith("STRICT_")
        if depends or not isinstance(scaling.label_selector or {}, Mapping):
            return 0  # where more of them may lie follows from where these lie
        most = scaling.max_workers - self.admission.size
        sizes = range(scaling.step, most + 1, scaling.step)
        return largest_size(self.admission.engine, scaling, sizes)
