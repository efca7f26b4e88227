"""The preprocessor of images by functions of torchvision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dray.data.forms.blocks import Column, Value, column_to_numpy, to_column
from dray.data.preprocessors.preprocessor import ColumnPreprocessor


class TorchVisionPreprocessor(ColumnPreprocessor):
    """Calls a function of torchvision, or one like it, on arrays.

    Args:
        columns: The columns of arrays.
        transform: It takes an array, and returns a tensor or an array.
        output_columns: Names of the new columns; default: the names of `columns`.
        batched: Whether it takes all arrays of a block at once, as one tensor of torch.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        transform: Callable[[Value], Value],
        output_columns: Sequence[str] | None = None,
        batched: bool = False,
    ) -> None:
        super().__init__(columns, output_columns)
        self.torchvision_transform, self.batched = transform, batched

    def _column(self, name: str, column: Column) -> Column:
        arrays = column_to_numpy(column)
        if not self.batched:
            return to_column([np.asarray(self.torchvision_transform(array)) for array in arrays])
        import torch

        # of a copy, as the transform may write to it
        return to_column(self.torchvision_transform(torch.tensor(arrays)))
