"""The inline engine: everything runs in this process, for debugging."""

from dray.engines.inline.engine import InlineEngine

__all__ = ["ENGINE"]

ENGINE = InlineEngine
