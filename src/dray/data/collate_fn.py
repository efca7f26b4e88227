"""Base classes of collate functions, which turn a batch into the input of a training step.

The class of a function determines the format of its batches in `iter_torch_batches` and similar
methods. A function that is not an instance of these classes gets a dict of NumPy arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dray.compat.attributes import attach_getattr
from dray.data.forms.blocks import Arrays, Frame, Table

if TYPE_CHECKING:
    from collections.abc import Callable

B = TypeVar("B")


class CollateFn(Generic[B]):
    """A collate function."""

    def __call__(self, batch: B) -> Any:
        """Return the input of a training step.

        Args:
            batch: Rows, in the format of the class.
        """
        raise NotImplementedError


class NumpyBatchCollateFn(CollateFn[Arrays]):
    """A collate function that takes a dict of NumPy arrays.

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
    """A collate function that takes an Arrow table."""


class PandasBatchCollateFn(CollateFn[Frame]):
    """A collate function that takes a pandas DataFrame."""


def format_for(function: Callable[[Any], Any] | None, default: str = "numpy") -> str:
    """Return the batch format that a function expects."""
    if isinstance(function, ArrowBatchCollateFn):
        return "pyarrow"
    if isinstance(function, PandasBatchCollateFn):
        return "pandas"
    return "numpy" if isinstance(function, NumpyBatchCollateFn) else default


attach_getattr(__name__)
