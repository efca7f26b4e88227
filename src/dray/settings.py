"""The one place that reads dray's environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from dray.errors import ConfigError

ENGINES = ("process", "inline")
START_METHODS = ("fork", "spawn")


def _choice(variable: str, default: str, allowed: tuple[str, ...]) -> str:
    value = os.environ.get(variable, default)
    if value not in allowed:
        raise ConfigError(f"{variable}={value!r} is not one of {', '.join(allowed)}")
    return value


def _flag(variable: str, default: bool) -> bool:
    return _choice(variable, "1" if default else "0", ("0", "1")) == "1"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the environment says, read when a session starts.

    Attributes:
        engine: `DRAY_ENGINE`: the engine when `dray.init` names none.
        start_method: `DRAY_START_METHOD`: how the process engine makes workers.
        share_imports: `DRAY_SHARE_IMPORTS`: whether the fork server may be a fork of the driver.
        progress: `DRAY_PROGRESS`: whether runs print to the terminal.
    """

    engine: str = field(default_factory=lambda: _choice("DRAY_ENGINE", "process", ENGINES))
    start_method: str = field(
        default_factory=lambda: _choice("DRAY_START_METHOD", "", ("", *START_METHODS))
    )
    share_imports: bool = field(default_factory=lambda: _flag("DRAY_SHARE_IMPORTS", True))
    progress: bool = field(default_factory=lambda: _flag("DRAY_PROGRESS", True))
