"""Vectorizers: texts replaced by word counts, and numeric columns by hashed vectors."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from dray.checks import is_whole, plain
from dray.data.dataset import Dataset
from dray.data.forms.blocks import (
    Array,
    Column,
    Table,
    Value,
    column_to_numpy,
    put_column,
    to_column,
)
from dray.data.forms.names import check_column
from dray.data.preprocessors.preprocessor import Preprocessor, outputs
from dray.data.preprocessors.tokenizer import TextPreprocessor
from dray.errors import ConfigError

__all__ = ["CountVectorizer", "FeatureHasher", "HashingVectorizer"]


class _Vectorizer(TextPreprocessor):
    """A preprocessor that counts words."""

    def _column(self, name: str, column: Column) -> Column:
        places, size = self._places(name)
        rows = [
            None if text is None else _counts(map(places, self.tokenization_fn(text)), size)
            for text in column.to_pylist()
        ]
        return pa.array(rows, pa.list_(pa.int64(), size))

    def _places(self, name: str) -> tuple[Callable[[str], int | None], int]:
        """Return a function from a word to its place in a vector, and the length of vectors."""
        raise NotImplementedError


def _counts(places: Iterable[int | None], size: int) -> list[int]:
    found = Counter(places)
    return [found[place] for place in range(size)]


class CountVectorizer(_Vectorizer):
    """A preprocessor that replaces each text by its word counts, the most frequent words first.

    A missing text stays missing.

    Args:
        columns: The columns of text.
        tokenization_fn: Splits a text into words; default: at spaces.
        max_features: The maximum number of words of a column; the most frequent ones are kept.
        output_columns: Names of the new columns; default: the names of `columns`.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import CountVectorizer
        >>> rows = dray.data.from_items([{"text": "a b a"}, {"text": "b c a"}])
        >>> CountVectorizer(["text"]).fit_transform(rows).take_all()
        [{'text': [2, 1, 0]}, {'text': [1, 1, 1]}]
    """

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Callable[[str], list[str]] | None = None,
        max_features: int | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, tokenization_fn, output_columns)
        self.max_features = None if max_features is None else _number(max_features, "max_features")

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        counts: dict[str, Counter[str]] = {name: Counter() for name in self.columns}
        for block in ds.select_columns(self.columns).blocks():
            for name, counted in counts.items():
                for text in block.table.column(name).to_pylist():
                    counted.update(() if text is None else self.tokenization_fn(text))
        return {
            f"token_counts({name})": Counter(dict(counted.most_common(self.max_features)))
            for name, counted in counts.items()
        }

    def _places(self, name: str) -> tuple[Callable[[str], int | None], int]:
        counted = self.stats_[f"token_counts({name})"]
        places = {word: place for place, (word, _) in enumerate(counted.most_common())}
        return places.get, len(places)


class HashingVectorizer(_Vectorizer):
    """A preprocessor that replaces each text by counts of its words, at places hashed from them.

    The place of a word depends only on the word; several words may share a place.

    Args:
        columns: The columns of text.
        num_features: The number of places.
        tokenization_fn: Splits a text into words; default: at spaces.
        output_columns: Names of the new columns; default: the names of `columns`.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import HashingVectorizer
        >>> rows = dray.data.from_items([{"text": "Jimmy likes volleyball"}])
        >>> HashingVectorizer(["text"], 8).transform(rows).take_all()
        [{'text': [0, 0, 1, 1, 0, 0, 1, 0]}]
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        num_features: int,
        tokenization_fn: Callable[[str], list[str]] | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, tokenization_fn, output_columns)
        self.num_features = _number(num_features, "num_features")

    def _places(self, name: str) -> tuple[Callable[[str], int | None], int]:
        size = self.num_features
        return functools.cache(lambda word: hashed_place(word, size)), size


class FeatureHasher(Preprocessor):
    """A preprocessor that joins numeric columns to vectors, at places hashed from their names.

    Columns with the same place are added.

    Args:
        columns: The columns.
        num_features: The number of places.
        output_column: The name of the column of vectors.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import FeatureHasher
        >>> rows = dray.data.from_items([{"I": 1, "like": 1, "dislike": 0, "Python": 1}])
        >>> hasher = FeatureHasher(["I", "like", "dislike", "Python"], 8, "hashed")
        >>> hasher.transform(rows).take_batch(1)["hashed"].tolist()
        [[0, 0, 0, 1, 1, 0, 0, 1]]
    """

    _is_fittable = False

    def __init__(self, columns: Sequence[str], num_features: int, output_column: str) -> None:
        self.columns = [name for name, _ in outputs(columns, None)]
        self.num_features = _number(num_features, "num_features")
        self.output_column = output_column

    def get_output_columns(self) -> list[str]:
        """Return the column of the vectors."""
        return [self.output_column]

    def _changed(self, table: Table) -> Table:
        check_column(table, self.columns)
        columns = [column_to_numpy(table.column(name)) for name in self.columns]
        kind = np.result_type(np.int64, *columns)
        vectors: Array = np.zeros((table.num_rows, self.num_features), kind)
        for name, values in zip(self.columns, columns, strict=True):
            with self._named(f"column {name!r}"):
                vectors[:, hashed_place(name, self.num_features)] += values
        return put_column(table, self.output_column, to_column(vectors))


def hashed_place(word: object, places: int) -> int:
    """Return the place of a word, the same as in Ray."""
    return int(hashlib.sha256(str(word).encode()).hexdigest(), 16) % places


def _number(value: object, called: str) -> int:
    number = plain(value)
    if not is_whole(number, 1):
        raise ConfigError(f"{called} must be a number, 1 or more, not {value!r}")
    return int(number)
