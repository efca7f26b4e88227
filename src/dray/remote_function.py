"""The module path `dray.remote_function`, for programs that import the type of remote functions."""

from dray.compat.attributes import attach_getattr
from dray.core.remote import RemoteFunction

__all__ = ["RemoteFunction"]

attach_getattr(__name__)
