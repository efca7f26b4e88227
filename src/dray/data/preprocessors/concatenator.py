"""The concatenator: numeric columns as one column of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dray.compat.arguments import checked_arguments
from dray.data.forms.blocks import Array, Table, Value, column_to_numpy, put_column, to_column
from dray.data.forms.lists import is_list
from dray.data.forms.names import check_column
from dray.data.preprocessors.preprocessor import Preprocessor, outputs

if TYPE_CHECKING:
    import numpy.typing as npt


@checked_arguments("Concatenator")
class Concatenator(Preprocessor):
    """A preprocessor that joins numeric columns to one column of vectors.

    Args:
        columns: The columns; they are dropped.
        output_column_name: The name of the column of vectors.
        dtype: The NumPy type of the vectors; default: a type that holds the values of all columns.
        raise_if_missing: Whether a missing column is an error; if False, it is skipped.
        flatten: Whether to join columns of vectors as well; dray always does.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import Concatenator
        >>> rows = dray.data.from_items([{"a": 1.0, "b": 2.0, "y": 0}])
        >>> Concatenator(["a", "b"], "x").transform(rows).take_batch(1)["x"].tolist()
        [[1.0, 2.0]]
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        output_column_name: str = "concat_out",
        dtype: npt.DTypeLike | None = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
    ) -> None:
        self.columns = [name for name, _ in outputs(columns, None)]
        self.output_column_name, self.dtype = output_column_name, dtype
        self.raise_if_missing, self.flatten = raise_if_missing, flatten

    def get_output_columns(self) -> list[str]:
        """Return the column of the vectors."""
        return [self.output_column_name]

    def _changed(self, table: Table) -> Table:
        if self.raise_if_missing:
            check_column(table, self.columns)
        names = [name for name in self.columns if name in table.column_names]
        arrays = [column_to_numpy(table.column(name)) for name in names]
        if any(is_list(table.column(name).type) for name in names):
            rows = zip(*arrays, strict=True)
            vectors: Value = [self._typed(np.concatenate(list(map(np.ravel, row)))) for row in rows]
        else:
            parts = [array.reshape(len(array), -1) for array in arrays]
            vectors = np.concatenate(parts, axis=1) if parts else np.empty((table.num_rows, 0))
            vectors = self._typed(vectors)
        kept = table.drop_columns(names)
        return put_column(kept, self.output_column_name, to_column(vectors))

    def _typed(self, vectors: Array) -> Array:
        return vectors if self.dtype is None else vectors.astype(self.dtype)
