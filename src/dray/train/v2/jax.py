"""The path `dray.train.v2.jax`, for programs that import from there; see `dray.train.jax`."""

from dray.train.jax import JaxConfig, JaxTrainer

__all__ = ["JaxConfig", "JaxTrainer"]
