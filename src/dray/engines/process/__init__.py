"""The process engine: workers are processes of this machine. The default."""

from dray.engines.process.engine import ProcessEngine

__all__ = ["ENGINE"]

ENGINE = ProcessEngine
