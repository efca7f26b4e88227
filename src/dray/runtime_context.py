"""The module path `dray.runtime_context`: the context in which the calling code runs."""

from dray.compat.attributes import attach_getattr
from dray.core.context import RuntimeContext, get_runtime_context

__all__ = ["RuntimeContext", "get_runtime_context"]

attach_getattr(__name__)
