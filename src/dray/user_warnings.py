"""Warnings that name the line of the user's program that has caused them."""

from __future__ import annotations

import sys
import warnings

# `from dray.x import name` adds frames of the import system to the stack.
_BETWEEN = ("dray.", "importlib.")


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of the stack that is outside this package.

    Python shows a DeprecationWarning only if that line is in the main script.
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
