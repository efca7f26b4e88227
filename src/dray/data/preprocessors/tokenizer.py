"""The tokenizer: lists of words in place of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from dray.data.forms.blocks import Table, put_column
from dray.data.preprocessors.preprocessor import Preprocessor, outputs
from dray.data.relational import check_column


class Tokenizer(Preprocessor):
    """Makes a list of words of each text.

    Args:
        columns: The columns of text.
        tokenization_fn: It takes a text, and returns words; default: what is between spaces.
        output_columns: Names of the lists; default: those of the columns.
    """

    _needs_fit = False

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Callable[[str], list[str]] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        self._pairs = outputs(columns, output_columns)
        self._words = tokenization_fn or _words

    def _changed(self, table: Table) -> Table:
        check_column(table, [name for name, _ in self._pairs])
        for name, output in self._pairs:
            texts = table.column(name).to_pylist()
            words = [None if text is None else self._words(text) for text in texts]
            table = put_column(table, output, pa.array(words))
        return table


def _words(text: str) -> list[str]:
    return text.split(" ")
