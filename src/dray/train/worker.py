"""The train worker: the actor that runs the train function of one rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from dray.engines import wire
from dray.train import messages
from dray.train.context import Seat, TrainingStopped, leave_seat, take_seat

Job = tuple[Callable[..., Any], tuple[Any, ...]]


class Ended(NamedTuple):
    """How the train function ended: by returning, or because the user asked the run to stop."""

    value: Any = None
    stopped: bool = False


class TrainWorker:
    """Lives in a worker; the controller calls it.

    Args:
        post: Pushes a message to the controller.
        assignment: Which rank of which run.
        own_process: Whether this process belongs to the worker alone.
    """

    def __init__(
        self, post: Callable[[Any], None], *, assignment: messages.Assignment, own_process: bool
    ) -> None:
        self._seat = Seat(assignment, post)
        self._own_process = own_process
        take_seat(self._seat)

    def execute(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a hook of the framework."""
        return function(*args)

    def run(self, job: bytes | Job) -> Ended:
        """Runs the train function.

        Args:
            job: The function and its arguments; pickled, if they crossed a process boundary.
        """
        function, args = wire.load(job) if isinstance(job, bytes) else job
        if self._own_process:
            _show_in_main(function)
        try:
            return Ended(function(*args))
        except TrainingStopped:
            return Ended(stopped=True)
        except SystemExit as error:
            if error.code in (None, 0):
                return Ended()
            raise

    def close(self) -> None:
        """Frees what the rank held."""
        leave_seat()

    def deliver(self, message: Any) -> None:
        """Takes a message of the controller, on the control thread."""
        self._seat.deliver(message)


def _show_in_main(function: Callable[..., Any]) -> None:
    """Puts the train function's globals in this process's `__main__`, where they were.

    So that what the train function saves refers to classes as `__main__.Net`, which the script
    that loads it has too, and pickling them works at all.
    """
    if getattr(function, "__module__", None) != "__main__":
        return
    main = vars(sys.modules["__main__"])
    for name, value in getattr(function, "__globals__", {}).items():
        if not name.startswith("__"):
            main[name] = value
    main[function.__name__] = function
