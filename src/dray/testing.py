"""What tests of programs need: simulated nodes that die, and hosts with made-up accelerators."""

from __future__ import annotations

from dray import session
from dray.accelerators.fake import FakeHost
from dray.errors import ConfigError

__all__ = ["FakeHost", "kill_node"]


def kill_node(node_id: str) -> None:
    """Ends a simulated node: every process on it dies, and nothing is placed there any more.

    Stored objects survive, because on one machine they lie in memory that all nodes share.

    Args:
        node_id: One of those that `dray.init(nodes=[...])` made.

    Raises:
        ConfigError: There is no such node, or the engine's nodes are real.

    Example:
        >>> import dray, dray.testing
        >>> dray.init(nodes=[{"node_id": "a"}, {"node_id": "b"}])
        >>> dray.testing.kill_node("b")
        >>> [node["Alive"] for node in dray.nodes()]
        [True, False]
        >>> dray.shutdown()
    """
    engine = session.current_engine()
    lose_node = getattr(engine, "lose_node", None)
    if lose_node is None:
        raise ConfigError(
            f"the nodes of the {engine.name} engine are not simulated; kill_node() is for "
            "dray.init(nodes=[...]) on the process engine"
        )
    lose_node(node_id)
