"""The preprocessor of images by functions of torchvision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dray.data.forms.blocks import Array, Table, Value, column_to_numpy, put_column, to_column
from dray.data.preprocessors.preprocessor import Preprocessor, outputs
from dray.data.relational import check_column


class TorchVisionPreprocessor(Preprocessor):
    """Calls a function of torchvision, or one like it, on arrays.

    Args:
        columns: The columns of arrays.
        transform: It takes an array, and returns a tensor or an array.
        output_columns: Names of the new ones; default: those of the columns.
        batched: Whether it takes all arrays of a block at once, as one tensor of torch.
    """

    _needs_fit = False

    def __init__(
        self,
        columns: Sequence[str],
        transform: Callable[[Value], Value],
        output_columns: Sequence[str] | None = None,
        batched: bool = False,
    ) -> None:
        self._pairs = outputs(columns, output_columns)
        self._transform, self._batched = transform, batched

    def _changed(self, table: Table) -> Table:
        check_column(table, [name for name, _ in self._pairs])
        for name, output in self._pairs:
            arrays = column_to_numpy(table.column(name))
            table = put_column(table, output, to_column(self._made(arrays)))
        return table

    def _made(self, arrays: Array) -> Array:
        if not self._batched:
            return [np.asarray(self._transform(array)) for array in arrays]
        import torch

        return self._transform(torch.tensor(arrays))  # a copy, as the transform may write to it
