"""The module path `dray.actor`, for programs that import the types of actors from there."""

from dray.compat.attributes import attach_getattr
from dray.core.actor import ActorClass, ActorHandle, ActorMethod, exit_actor, method

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "ActorProxy", "exit_actor", "method"]

# For annotations such as `ActorProxy[Counter]`.
ActorProxy = ActorHandle

attach_getattr(__name__)
