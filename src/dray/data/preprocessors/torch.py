"""The preprocessor that applies a torchvision transform to images."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dray.data.forms.blocks import Column, Value, column_to_numpy, to_column
from dray.data.preprocessors.preprocessor import ColumnPreprocessor


class TorchVisionPreprocessor(ColumnPreprocessor):
    """A preprocessor that calls a transform of torchvision, or a similar function, on arrays.

    Args:
        columns: The columns of arrays.
        transform: A function from an array to a tensor or an array.
        output_columns: Names of the new columns; default: the names of `columns`.
        batched: Whether the function gets all arrays of a block at once, as one torch tensor.
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

        # The tensor is a copy, because the transform may write to it.
        return to_column(self.torchvision_transform(torch.tensor(arrays)))
