"""Backends and reductions of collectives between actors."""

from __future__ import annotations

import enum

from dray.compat.attributes import attach_getattr
from dray.errors import ConfigError

__all__ = ["Backend", "ReduceOp"]

attach_getattr(__name__)


class Backend(str, enum.Enum):
    """A library that carries tensors between the ranks of a group.

    Example:
        >>> from dray.util.collective.types import Backend
        >>> Backend("gloo") is Backend.GLOO
        True
    """

    GLOO = "GLOO"
    NCCL = "NCCL"

    @classmethod
    def _missing_(cls, value: object) -> Backend:
        name = str(value).upper().removeprefix("TORCH_")
        if name in cls.__members__:
            return cls[name]
        raise ConfigError(f"backend={value!r}: collectives use 'gloo' or 'nccl'")


class ReduceOp(enum.Enum):
    """A way to make one value of those of all ranks.

    Example:
        >>> from dray.util.collective.types import ReduceOp
        >>> ReduceOp.SUM.name
        'SUM'
    """

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3
