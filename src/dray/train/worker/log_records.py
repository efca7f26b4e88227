"""The records of `logging` in a train worker: shown as the script configured, or from INFO on."""

from __future__ import annotations

import logging
import os

from dray import host


def chosen_level() -> int | None:
    """Return the level of the root logger, if the script has configured it; else None."""
    root, last = logging.getLogger(), logging.lastResort
    in_worker = last is not None and _is_of_interest in last.filters  # then `show` has set a level
    usual = logging.INFO if in_worker else logging.WARNING
    configured = root.level != usual or any(map(_leaves_the_process, root.handlers))
    return root.level if configured else None


def show(level: int | None) -> None:
    """Write to standard error what loggers without handlers are told.

    Without a level those are records from INFO on, but of installed packages from WARNING on. As
    no handler is added, `logging.basicConfig()` in the train function works as it does in a script.

    Args:
        level: The level of the driver's root logger; None if the script has not configured it.
    """
    root = logging.getLogger()
    root.setLevel(logging.INFO if level is None else level)
    root.handlers[:] = filter(_leaves_the_process, root.handlers)  # what a fork has of the driver
    handler = logging.lastResort
    if handler is None:
        return
    handler.setLevel(logging.NOTSET)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    if level is None:
        handler.addFilter(_is_of_interest)
    else:
        handler.removeFilter(_is_of_interest)


def _leaves_the_process(handler: logging.Handler) -> bool:
    """Return whether a handler does more than to drop records, or to keep them, as pytest does."""
    if isinstance(handler, logging.FileHandler):
        return handler.baseFilename != os.devnull
    if isinstance(handler, logging.StreamHandler):
        try:
            return bool(handler.stream.fileno() >= 0)
        except (OSError, ValueError, AttributeError):  # it is in memory, or a cell of a notebook
            return False
    return not isinstance(handler, logging.NullHandler)


def _is_of_interest(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or not host.is_installed(record.pathname)
