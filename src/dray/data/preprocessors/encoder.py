"""Encoders: categories replaced by numbers or vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dray.data.dataset import Dataset
from dray.data.forms.blocks import Column, Table, Value, put_column, to_column
from dray.data.forms.lists import values_in
from dray.data.forms.names import column_named
from dray.data.preprocessors.preprocessor import ColumnPreprocessor, Preprocessor, outputs
from dray.data.relational import hashable

if TYPE_CHECKING:
    import pandas as pd


class _HotEncoder(ColumnPreprocessor):
    """An encoder that makes vectors with one place for each category."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.max_categories = dict(max_categories or {})

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        return {f"unique_values({name})": self._categories(ds, name) for name in self.columns}

    def _categories(self, ds: Dataset, name: str) -> dict[Value, int]:
        """Return the places of a column's categories."""
        raise NotImplementedError


class OneHotEncoder(_HotEncoder):
    """An encoder that replaces each value by a vector with a 1 in the place of its category.

    Args:
        columns: The columns.
        max_categories: A dict of column -> maximum number of categories; the most frequent ones are
            kept.
        output_columns: Names of the new columns; default: the names of `columns`.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import OneHotEncoder
        >>> colours = dray.data.from_items([{"colour": "red"}, {"colour": "blue"}])
        >>> OneHotEncoder(["colour"]).fit_transform(colours).take(1)[0]["colour"].tolist()
        [0, 1]
    """

    def _categories(self, ds: Dataset, name: str) -> dict[Value, int]:
        counted = ds.groupby(name).count().take_all()
        values = [row[name] for row in counted if _is_category(row[name])]
        most = self.max_categories.get(name)
        if most is not None:
            counts = {row[name]: row["count()"] for row in counted}
            values = sorted(values, key=lambda value: -counts[value])[:most]
        return _order(values)

    def _column(self, name: str, column: Column) -> Column:
        places = self.stats_[f"unique_values({name})"]
        found = _places(column, places)
        return to_column((found[:, None] == np.arange(len(places))).astype(np.uint8))


def _places(column: Column, places: Mapping[Value, int]) -> Column:
    """Return the place of each value of a column, or -1 if it has none."""
    return np.array([places.get(value, -1) for value in column.to_pylist()], np.int64)


class LabelEncoder(Preprocessor):
    """An encoder that replaces a column's values by numbers from 0; unknown values become null.

    Args:
        label_column: The column.
        output_column: The name of the new column; default: the name of the label column.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import LabelEncoder
        >>> rows = dray.data.from_items([{"kind": "b"}, {"kind": "a"}])
        >>> LabelEncoder("kind").fit_transform(rows).take_all()
        [{'kind': 1}, {'kind': 0}]
    """

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        names = outputs([label_column], output_column and [output_column])
        [(self.label_column, self.output_column)] = names

    def get_input_columns(self) -> list[str]:
        """Return the label column."""
        return [self.label_column]

    def get_output_columns(self) -> list[str]:
        """Return the column of the numbers."""
        return [self.output_column]

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        values = _ordered(ds.unique(self.label_column))
        return {f"unique_values({self.label_column})": _order(values)}

    def _changed(self, table: Table) -> Table:
        places = self.stats_[f"unique_values({self.label_column})"]
        found = _places(column_named(table, self.label_column), places)
        return put_column(table, self.output_column, pa.array(found, mask=found < 0))

    def inverse_transform(self, ds: Dataset) -> Dataset:
        """Return a dataset with the values for the numbers; unknown numbers become null."""
        self._check_fitted()
        values = dict(enumerate(self.stats_[f"unique_values({self.label_column})"]))

        def restored(table: Table) -> Table:
            numbers = column_named(table, self.output_column).to_pylist()
            return put_column(table, self.label_column, pa.array(map(values.get, numbers)))

        return ds.on_tables(restored)


def _sorted_values(ds: Dataset, name: str, *, in_lists: bool = True) -> list[Value]:
    """Return the distinct values of a column in order; for lists, the distinct values in them."""
    found: set[Value] = set()
    for block in ds.select_columns([name]).blocks():
        column = block.table.column(name)
        if not pa.types.is_nested(column.type):
            found.update(pc.unique(column).to_pylist())
            continue
        for value in column.to_pylist():
            found.update(value or () if in_lists else [hashable(value)])
    return _ordered(found)


def _is_category(value: Value) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and bool(value == value)


def _ordered(values: Iterable[Value]) -> list[Value]:
    return sorted(filter(_is_category, values))


def _order(values: Iterable[Value]) -> dict[Value, int]:
    return {value: index for index, value in enumerate(values)}


class OrdinalEncoder(ColumnPreprocessor):
    """An encoder that replaces values by numbers from 0, in sorted order; unknown ones become null.

    Args:
        columns: The columns, of single values or of lists.
        encode_lists: Whether to encode each value of a list; if False, a list counts as one value.
        output_columns: Names of the new columns; default: the names of `columns`.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import OrdinalEncoder
        >>> rows = dray.data.from_items([{"size": "s"}, {"size": "m"}])
        >>> OrdinalEncoder(["size"]).fit_transform(rows).take_all()
        [{'size': 1}, {'size': 0}]
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        encode_lists: bool = True,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.encode_lists = encode_lists

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        return {
            f"unique_values({name})": _order(_sorted_values(ds, name, in_lists=self.encode_lists))
            for name in self.columns
        }

    def _column(self, name: str, column: Column) -> Column:
        places = self.stats_[f"unique_values({name})"]
        numbers = [self._number(value, places) for value in column.to_pylist()]
        kind = pa.list_(pa.int64()) if any(isinstance(n, list) for n in numbers) else pa.int64()
        return pa.array(numbers, kind)

    def _number(self, value: Value, places: Mapping[Value, int]) -> Value:
        if isinstance(value, list) and self.encode_lists:
            return [places.get(each) for each in value]
        return places.get(hashable(value))


class MultiHotEncoder(_HotEncoder):
    """An encoder that replaces each list by a vector with the count of each category.

    Args:
        columns: The columns of lists.
        max_categories: A dict of column -> maximum number of categories; the most frequent ones are
            kept.
        output_columns: Names of the new columns; default: the names of `columns`.
    """

    def _categories(self, ds: Dataset, name: str) -> dict[Value, int]:
        counts: Counter[Value] = Counter()
        for row in ds.select_columns([name]).iter_rows():
            counts.update(filter(_is_category, values_in(row[name])))
        frequent = counts.most_common(self.max_categories.get(name))
        return _order(_ordered(value for value, _ in frequent))

    def _column(self, name: str, column: Column) -> Column:
        places = self.stats_[f"unique_values({name})"]
        vectors: Value = np.zeros((len(column), len(places)), np.uint8)
        for row, values in enumerate(column.to_pylist()):
            for place in (places[value] for value in values_in(values) if value in places):
                vectors[row, place] += 1
        return to_column(vectors)


class Categorizer(ColumnPreprocessor):
    """A preprocessor that makes columns of pandas' type `category`.

    Args:
        columns: The columns.
        dtypes: A dict of column -> `pandas.CategoricalDtype` for columns with known categories.
        output_columns: Names of the new columns; default: the names of `columns`.
    """

    def __init__(
        self,
        columns: Sequence[str],
        dtypes: Mapping[str, pd.CategoricalDtype] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.dtypes = dict(dtypes or {})

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        known = self.dtypes
        return {
            name: list(known[name].categories) if name in known else _sorted_values(ds, name)
            for name in self.columns
        }

    def _column(self, name: str, column: Column) -> Column:
        values = self.stats_[name]
        places = _order(values)
        numbers = [places.get(value) for value in column.to_pylist()]
        return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(values))
