"""The path `dray.remote_function`, for programs that name the type of remote functions."""

from dray.answers import answer_for
from dray.core.remote import RemoteFunction

__all__ = ["RemoteFunction"]

answer_for(__name__)
