"""The public paths below `dray.util` that users of Ray expect."""

from typing import TYPE_CHECKING, Literal, overload

from dray import session
from dray.compat.attributes import attach_getattr
from dray.core.actor import names_of_actors
from dray.util import accelerators
from dray.util.actor_pool import ActorPool
from dray.util.debug import disable_log_once_globally, log_once
from dray.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from dray.util.results import as_completed, map_unordered
from dray.util.serialization import (
    deregister_serializer,
    inspect_serializability,
    register_serializer,
)

__all__ = [
    "ActorPool",
    "accelerators",
    "as_completed",
    "deregister_serializer",
    "disable_log_once_globally",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "map_unordered",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
]

attach_getattr(
    __name__,
    later=(
        "collective",
        "dask",
        "joblib",
        "metrics",
        "multiprocessing",
        "queue",
        "scheduling_strategies",
        "state",
    ),
)

if TYPE_CHECKING:
    # `as`: a checker then knows that they are there for programs.
    from dray.util import collective as collective
    from dray.util import dask as dask
    from dray.util import joblib as joblib
    from dray.util import metrics as metrics
    from dray.util import multiprocessing as multiprocessing
    from dray.util import queue as queue
    from dray.util import scheduling_strategies as scheduling_strategies
    from dray.util import state as state


@overload
def list_named_actors(all_namespaces: Literal[False] = False) -> list[str]: ...
@overload
def list_named_actors(all_namespaces: Literal[True]) -> list[dict[str, str]]: ...
@overload
def list_named_actors(all_namespaces: bool) -> list[str] | list[dict[str, str]]: ...
def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Return the named actors that live.

    Args:
        all_namespaces: Return those of every namespace, each as a dict of `namespace` and `name`.

    Returns:
        Their names in this program's namespace.

    Example:
        >>> import dray.util
        >>> @dray.remote
        ... class Greeter:
        ...     pass
        >>> greeter = Greeter.options(name="listed").remote()
        >>> "listed" in dray.util.list_named_actors()
        True
    """
    return session.current_runtime().named_actors() if all_namespaces else names_of_actors(None)


def get_node_ip_address(address: object = None) -> str:
    """Return the address of the node that the calling code runs on.

    Args:
        address: Without effect.

    Example:
        >>> import dray.util
        >>> dray.util.get_node_ip_address()
        '127.0.0.1'
    """
    runtime = session.current_runtime()
    node_id = runtime.execution_context().node_id
    own = (node for node in runtime.nodes() if node["NodeID"] == node_id)
    return str(next(own)["NodeManagerAddress"])
