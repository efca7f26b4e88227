"""The engines, loaded by name: each is one module with a class called `ENGINE`."""

from __future__ import annotations

from dray.engines.contract import Engine, Node
from dray.errors import ConfigError
from dray.settings import ENGINES, Settings

__all__: list[str] = []


def load(name: str, node: Node, settings: Settings) -> Engine:
    """Returns a new engine of that name.

    Raises:
        ConfigError: There is no engine of that name.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine {name!r} does not exist; there are {', '.join(ENGINES)}")
    from importlib import import_module

    engine: Engine = import_module(f"dray.engines.{name}").ENGINE(node, settings)
    return engine
