"""The constants for `accelerator_type=`, where users of Ray expect them."""

from __future__ import annotations

import difflib
import warnings

from dray.accelerators import types
from dray.accelerators.types import *  # noqa: F403

__all__ = [name for name in vars(types) if name[0].isupper()]

_RENAMED = {"NVIDIA_TESLA_A100": "NVIDIA_A100"}


def __getattr__(name: str) -> str:
    """Serves the names that have gone, and helps with those that are misspelt."""
    if name in _RENAMED:
        now = _RENAMED[name]
        warnings.warn(f"{name} is now called {now}", DeprecationWarning, stacklevel=2)
        value: str = globals()[now]
        return value
    near = difflib.get_close_matches(name.upper(), __all__, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise AttributeError(f"dray.util.accelerators has no constant {name!r}{hint}")
