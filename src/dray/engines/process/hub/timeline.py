"""The times at which tasks and calls have run, as events of Chrome's tracing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from dray.engines.process.hub.records import Client, Task
from dray.engines.runtime import Described

# As many as Ray keeps.
_MOST = 100_000


class Timeline:
    """The times that workers tell, of which the newest are kept.

    Args:
        running: The tasks and calls that have not ended, by number.
    """

    def __init__(self, running: Mapping[int, Task]) -> None:
        self._running = running
        self.events: deque[Described] = deque(maxlen=_MOST)

    def on_timed(self, client: Client, number: int, began: float, ended: float) -> None:
        task, worker = self._running.get(number), client.worker
        if task is None or worker is None:
            return
        self.events.append(
            {
                "cat": f"task::{task.name}",
                "name": task.function,
                "pid": worker.node.address,
                "tid": f"worker:{worker.number:08x}",
                "ts": began * 1e6,
                "dur": (ended - began) * 1e6,
                "ph": "X",
                "cname": "generic_work",
                "args": {"name": task.function, "task_id": f"{number:032x}"},
            }
        )
