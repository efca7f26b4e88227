"""Transformers of numbers: normalization and power transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from dray.data.forms.blocks import Array, Column, Table, column_to_numpy, put_column, to_column
from dray.data.forms.names import column_named
from dray.data.preprocessors.preprocessor import ColumnPreprocessor
from dray.errors import ConfigError

__all__ = ["Normalizer", "PowerTransformer"]

_NORMS: dict[str, Callable[[Array], Array]] = {
    "l1": lambda values: np.abs(values).sum(axis=1),
    "l2": lambda values: np.sqrt((values**2).sum(axis=1)),
    "max": lambda values: np.abs(values).max(axis=1),
}
_METHODS = ("yeo-johnson", "box-cox")


class Normalizer(ColumnPreprocessor):
    """A preprocessor that divides the columns of each row by their norm, so that it becomes 1.

    Args:
        columns: The columns.
        norm: The norm: "l1", "l2" or "max".
        output_columns: Names of the new columns; default: the names of `columns`.

    Raises:
        ConfigError: The norm is unknown.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        norm: str = "l2",
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        if norm not in _NORMS:
            raise ConfigError(f"norm must be one of {', '.join(_NORMS)}, not {norm!r}")
        super().__init__(columns, output_columns)
        self.norm = norm

    def _changed(self, table: Table) -> Table:
        columns = [column_named(table, name) for name in self.columns]
        missing = np.any([column.is_null().to_numpy() for column in columns], axis=0)
        values = np.empty((table.num_rows, len(columns)))
        for place, (name, column) in enumerate(zip(self.columns, columns, strict=True)):
            with self._named(f"column {name!r}"):
                values[:, place] = column_to_numpy(column)
        with np.errstate(divide="ignore", invalid="ignore"):  # a row of zeros has the norm 0
            values = values / _NORMS[self.norm](values)[:, None]
        for output, made in zip(self.output_columns, values.T, strict=True):
            table = put_column(table, output, pa.array(made, mask=missing))
        return table


class PowerTransformer(ColumnPreprocessor):
    """A power transform that makes the distribution of numbers closer to a normal distribution.

    Args:
        columns: The columns.
        power: The power.
        method: "yeo-johnson", or "box-cox" for positive numbers.
        output_columns: Names of the new columns; default: the names of `columns`.

    Raises:
        ConfigError: The method is unknown.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        power: float,
        method: str = "yeo-johnson",
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        if method not in _METHODS:
            raise ConfigError(f"method must be one of {', '.join(_METHODS)}, not {method!r}")
        super().__init__(columns, output_columns)
        self.power, self.method = power, method

    def _column(self, name: str, column: Column) -> Column:
        raised = _box_cox if self.method == "box-cox" else _yeo_johnson
        return to_column(raised(column_to_numpy(column).astype(np.float64), self.power))


def _box_cox(values: Array, power: float) -> Array:
    return np.log(values) if power == 0 else (values**power - 1) / power


def _yeo_johnson(values: Array, power: float) -> Array:
    made = np.empty_like(values)
    above = values >= 0
    made[above] = _box_cox(values[above] + 1, power)
    made[~above] = -_box_cox(1 - values[~above], 2 - power)
    return made
