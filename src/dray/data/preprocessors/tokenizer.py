"""The tokenizer: texts replaced by lists of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dray.data.forms.blocks import Column
from dray.data.preprocessors.preprocessor import ColumnPreprocessor


class TextPreprocessor(ColumnPreprocessor):
    """A preprocessor that splits columns of text into words."""

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Callable[[str], list[str]] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn = tokenization_fn or _words_of


class Tokenizer(TextPreprocessor):
    """A preprocessor that replaces each text by a list of its words.

    Args:
        columns: The columns of text.
        tokenization_fn: Splits a text into words; default: at spaces.
        output_columns: Names of the new columns; default: the names of `columns`.
    """

    _is_fittable = False

    def _column(self, name: str, column: Column) -> Column:
        texts = column.to_pylist()
        return pa.array([None if text is None else self.tokenization_fn(text) for text in texts])


def _words_of(text: str) -> list[str]:
    """Return the words between spaces."""
    return text.split(" ")
