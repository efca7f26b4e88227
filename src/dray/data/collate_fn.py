"""Base classes of functions that make what a training step takes of a batch.

`iter_torch_batches(collate_fn=...)` and its like look at the class to see in which form the
function wants its batches; a function of no class is given a dict of NumPy arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dray.compat.attributes import attach_getattr
from dray.data.forms.blocks import Arrays, Frame, Table

if TYPE_CHECKING:
    from collections.abc import Callable

B = TypeVar("B")


class CollateFn(Generic[B]):
    """A function of a batch."""

    def __call__(self, batch: B) -> Any:
        """Return what a training step takes.

        Args:
            batch: Rows, in the form that the class says.
        """
        raise NotImplementedError


class NumpyBatchCollateFn(CollateFn[Arrays]):
    """A function of a dict of NumPy arrays.

    Example:
        >>> import dray.data
        >>> from dray.data.collate_fn import NumpyBatchCollateFn
        >>> class Sum(NumpyBatchCollateFn):
        ...     def __call__(self, batch):
        ...         return int(batch["id"].sum())
        >>> list(dray.data.range(4).iter_batches(batch_size=2, collate_fn=Sum()))
        [1, 5]
    """


class ArrowBatchCollateFn(CollateFn[Table]):
    """A function of a table of Arrow."""


class PandasBatchCollateFn(CollateFn[Frame]):
    """A function of a frame of pandas."""


def format_for(function: Callable[[Any], Any] | None, default: str = "numpy") -> str:
    """Return the form in which a function wants its batches."""
    if isinstance(function, ArrowBatchCollateFn):
        return "pyarrow"
    if isinstance(function, PandasBatchCollateFn):
        return "pandas"
    return "numpy" if isinstance(function, NumpyBatchCollateFn) else default


attach_getattr(__name__)
