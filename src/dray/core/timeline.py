"""The times at which tasks and calls have run: `dray.timeline`."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from dray import session
from dray.user_warnings import warn_user


def timeline(filename: str | PathLike[str] | None = None) -> list[dict[str, Any]] | None:
    """Return when tasks and calls of actors have run, as chrome://tracing and Perfetto show it.

    The process engine notes it if `RAY_PROFILING=1` is in the environment before `dray.init()`, and
    keeps the newest 100,000 events. On a cluster they are Ray's own; the inline engine has none.

    Args:
        filename: File to write the events to, as JSON, instead of returning them.

    Returns:
        The events, with times in microseconds; None if they are written to a file.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> dray.get(square.remote(3))
        9
        >>> [(event["name"], event["dur"]) for event in dray.timeline()]  # doctest: +SKIP
        [('square', 42.7)]
    """
    events = [dict(event) for event in session.current_runtime().described("timeline")]
    if not events:
        warn_user(
            "no timeline was recorded; the process engine records one if RAY_PROFILING=1 is set "
            "before dray.init()"
        )
    if filename is None:
        return events
    Path(filename).write_text(json.dumps(events))
    return None
