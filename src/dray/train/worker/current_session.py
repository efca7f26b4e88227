"""The train sessions of this process, in a module of its own for drivers, which run none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dray.errors import NotInTrainingError

if TYPE_CHECKING:
    from dray.train.worker.session import TrainSession

# One session a worker process; with the inline engine, one a thread that runs a train function.
_sessions: dict[int, TrainSession] = {}


def start_session(session: TrainSession) -> None:
    """Make a session the current one of this thread, and of threads that have none."""
    thread = threading.get_ident()
    session.outer, _sessions[thread] = _sessions.get(thread), session


def leave_session() -> None:
    """Take back what `start_session` of this thread did."""
    thread = threading.get_ident()
    session = _sessions.pop(thread)
    if session.outer is not None:
        _sessions[thread] = session.outer
    session.close()


def current_session(name: str) -> TrainSession:
    """Return the current session.

    Args:
        name: The function that needs it, for the message.
    """
    session = _sessions.get(threading.get_ident())
    if session is None and len(_sessions) == 1:  # a thread that the train function started
        session = next(iter(_sessions.values()))
    if session is None:
        raise NotInTrainingError(name)
    return session
