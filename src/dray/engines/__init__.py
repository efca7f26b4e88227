"""The engines, loaded by name: each is a module, or a folder, with a class called `ENGINE`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dray.engines.base import Engine, Options
from dray.errors import ConfigError, join_names
from dray.settings import ENGINES, Settings

if TYPE_CHECKING:
    from dray.engines.runtime import Runtime

__all__: list[str] = []


def load(name: str, options: Options, settings: Settings) -> Engine:
    """Return a new engine of that name.

    Raises:
        ConfigError: There is no engine of that name, or it cannot meet the options.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine {name!r} does not exist; there are {join_names(ENGINES)}")
    engine: Engine = import_module(f"dray.engines.{name}").ENGINE(options, settings)
    return engine


def load_nested(runtime: Runtime) -> Engine:
    """Return an engine for a worker of the process engine that trains something itself.

    Args:
        runtime: The worker's part in its session, whose resources the engine uses.
    """
    engine: Engine = import_module("dray.engines.process.nested_engine").NestedEngine(runtime)
    return engine
