"""The constants for `accelerator_type=`, where users of Ray expect them."""

from __future__ import annotations

from dray.accelerators import type_names
from dray.accelerators.type_names import *  # noqa: F403
from dray.compat.attributes import absent_name
from dray.user_warnings import warn_user

__all__ = [name for name in vars(type_names) if name[0].isupper()]

__path__: list[str] = []  # `from dray.util.accelerators import` of what is not there is answered
_RENAMED = {"NVIDIA_TESLA_A100": "NVIDIA_A100"}


def __getattr__(name: str) -> str:
    """Serve the names that have gone, and help with those that are misspelt."""
    if name in _RENAMED:
        now = _RENAMED[name]
        warn_user(f"{name} is now called {now}", DeprecationWarning)
        value: str = globals()[now]
        return value
    raise absent_name(__name__, name, __all__)
