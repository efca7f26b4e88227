"""The path `dray.runtime_context`: where the calling code runs."""

from dray.answers import answer_for
from dray.core.context import RuntimeContext, get_runtime_context

__all__ = ["RuntimeContext", "get_runtime_context"]

answer_for(__name__)
