"""The records of `logging` in a train worker: shown as the script has chosen, or from INFO on."""

from __future__ import annotations

import logging

from dray import host


def chosen_level() -> int | None:
    """Return the level of the root logger, if the script has configured it; else None."""
    root = logging.getLogger()
    return root.level if root.handlers or root.level != logging.WARNING else None


def show(level: int | None) -> None:
    """Write to standard error what loggers without handlers are told.

    Without a level those are records from INFO on, but of installed packages from WARNING on. As
    no handler is added, `logging.basicConfig()` in the train function works as it does in a script.

    Args:
        level: The level of the driver's root logger; None if the script has not configured it.
    """
    logging.getLogger().setLevel(logging.INFO if level is None else level)
    handler = logging.lastResort
    if handler is None:
        return
    handler.setLevel(logging.NOTSET)
    handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
    if level is None:
        handler.addFilter(_is_of_interest)


def _is_of_interest(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or not host.is_installed(record.pathname)
