"""dray: run one function on many workers, each with the resources it asks for."""

from dray.session import (
    available_resources,
    cluster_resources,
    init,
    is_initialized,
    nodes,
    shutdown,
)
from dray.version import VERSION as __version__

__all__ = [
    "__version__",
    "available_resources",
    "cluster_resources",
    "init",
    "is_initialized",
    "nodes",
    "shutdown",
]
