"""Warnings that name the line of the user's program that they are about."""

from __future__ import annotations

import sys
import warnings

# `from dray.x import name` passes through the import system.
_BETWEEN = ("dray.", "importlib.")


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line outside this package that led here.

    Python shows a DeprecationWarning only if that line is of the main script.
    """
    frame = sys._getframe(1)
    while f"{frame.f_globals.get('__name__')}.".startswith(_BETWEEN) and frame.f_back is not None:
        frame = frame.f_back
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )
