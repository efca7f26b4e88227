"""The Ray engine: workers are actors of a Ray cluster. The only package that imports Ray."""

from dray.engines.ray.engine import RayEngine

__all__ = ["ENGINE"]

ENGINE = RayEngine
