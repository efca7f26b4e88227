"""dray: tasks, actors and training on many workers, each with the resources that it requests."""

import typing

from dray.compat.attributes import attach_getattr as _attach_getattr
from dray.compat.import_finder import install_finder as _install_finder
from dray.version import VERSION as __version__

__all__ = [
    "ActorHandle",
    "DynamicObjectRefGenerator",
    "ObjectRef",
    "ObjectRefGenerator",
    "__version__",
    "available_resources",
    "cancel",
    "cluster_resources",
    "exit_actor",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "method",
    "nodes",
    "put",
    "remote",
    "shutdown",
    "timeline",
    "wait",
]

# Names that are imported at first use, so that `import dray` takes only a few milliseconds.
_HOMES = {
    "dray.core.actor": ("ActorHandle", "exit_actor", "get_actor", "method"),
    "dray.core.context": ("get_gpu_ids", "get_runtime_context"),
    "dray.core.objects": ("cancel", "get", "kill", "put", "wait"),
    "dray.core.remote": ("remote",),
    "dray.core.timeline": ("timeline",),
    "dray.engines.result_lists": ("DynamicObjectRefGenerator",),
    "dray.engines.object_ref": ("ObjectRef", "ObjectRefGenerator"),
    "dray.session": (
        "available_resources",
        "cluster_resources",
        "init",
        "is_initialized",
        "nodes",
        "shutdown",
    ),
}

_install_finder()
_attach_getattr(
    __name__,
    later=(
        *("accelerators", "actor", "cloudpickle", "exceptions", "experimental", "remote_function"),
        *("runtime_context", "runtime_env", "testing", "train", "util", "data"),
    ),
    names=_HOMES,
)

if typing.TYPE_CHECKING:
    # `as`: a checker then knows that they are there for programs.
    from dray import accelerators as accelerators
    from dray import actor as actor
    from dray import cloudpickle as cloudpickle
    from dray import data as data
    from dray import exceptions as exceptions
    from dray import experimental as experimental
    from dray import remote_function as remote_function
    from dray import runtime_context as runtime_context
    from dray import runtime_env as runtime_env
    from dray import testing as testing
    from dray import train as train
    from dray import util as util
    from dray.core.actor import ActorHandle, exit_actor, get_actor, method
    from dray.core.context import get_gpu_ids, get_runtime_context
    from dray.core.objects import cancel, get, kill, put, wait
    from dray.core.remote import remote
    from dray.core.timeline import timeline
    from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
    from dray.engines.result_lists import DynamicObjectRefGenerator
    from dray.session import (
        available_resources,
        cluster_resources,
        init,
        is_initialized,
        nodes,
        shutdown,
    )
