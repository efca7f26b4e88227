"""The base of preprocessors, which learn from one dataset and change others and batches."""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import pyarrow as pa

from dray.data.dataset import Dataset
from dray.data.forms.blocks import (
    Batch,
    Column,
    Table,
    Value,
    put_column,
    row_values,
    to_batch,
    to_table,
)
from dray.data.forms.lists import is_list
from dray.data.forms.memory import handed_over
from dray.data.forms.names import check_column
from dray.data.operations import UserFunction
from dray.errors import ConfigError, DrayError

__all__ = ["Preprocessor"]

P = TypeVar("P", bound="Preprocessor")


class Preprocessor:
    """A change of columns that may be learned from a dataset.

    Your own subclass needs `_transform_pandas(df)` or `_transform_numpy(batch)`. It also needs
    `_fit(ds)` if it learns something, or else `_is_fittable = False`.

    Attributes:
        stats_: The learned values, by name.
    """

    stats_: dict[str, Value]

    def __repr__(self) -> str:
        """Show the constructor arguments that are stored as attributes."""
        given = {
            name: getattr(self, name)
            for name in inspect.signature(type(self).__init__).parameters
            if name in vars(self) or isinstance(getattr(type(self), name, None), property)
        }
        said = (
            f"{name}={getattr(value, '__name__', repr(value))}" for name, value in given.items()
        )
        return f"{type(self).__name__}({', '.join(said)})"

    class FitStatus(str, Enum):
        """The state of a preprocessor.

        Members:
            NOT_FITTABLE: The preprocessor has nothing to learn.
            NOT_FITTED: The preprocessor has not learned yet.
            PARTIALLY_FITTED: Only some preprocessors of a chain have learned.
            FITTED: The preprocessor has learned.
        """

        NOT_FITTABLE = "NOT_FITTABLE"
        NOT_FITTED = "NOT_FITTED"
        PARTIALLY_FITTED = "PARTIALLY_FITTED"
        FITTED = "FITTED"

    def fit(self: P, ds: Dataset) -> P:
        """Learn from a dataset, if there is something to learn, and return this preprocessor."""
        if not self._is_fittable:
            return self
        own = getattr(self, "_fit", None)
        with self._named("what it learns from"):
            if own is None:
                self.stats_ = self._learned(ds)
            else:
                own(ds)
        self._is_fitted = True
        return self

    def fit_transform(
        self,
        ds: Dataset,
        *,
        transform_num_cpus: float | None = None,
        transform_memory: float | None = None,
        transform_batch_size: int | None = None,
        transform_concurrency: int | None = None,
    ) -> Dataset:
        """Learn from a dataset, and return the transformed dataset.

        Args:
            ds: The dataset.
            transform_num_cpus: Ignored; for compatibility with Ray.
            transform_memory: Ignored; for compatibility with Ray.
            transform_batch_size: Ignored; for compatibility with Ray.
            transform_concurrency: Ignored; for compatibility with Ray.
        """
        return self.fit(ds).transform(ds)

    def transform(
        self,
        ds: Dataset,
        *,
        batch_size: int | None = None,
        num_cpus: float | None = None,
        memory: float | None = None,
        concurrency: int | None = None,
    ) -> Dataset:
        """Return the transformed dataset.

        Args:
            ds: The dataset.
            batch_size: Number of rows of the batches that your own subclass gets.
            num_cpus: Ignored; for compatibility with Ray.
            memory: Ignored; for compatibility with Ray.
            concurrency: Ignored; for compatibility with Ray.

        Raises:
            ConfigError: `fit` has not been called.
        """
        self._check_fitted()
        return self._transformed(ds, batch_size)

    def transform_batch(self, data: Batch) -> Batch:
        """Return a transformed batch: a dict of arrays, an Arrow table or a pandas DataFrame.

        Raises:
            ConfigError: `fit` has not been called.
        """
        self._check_fitted()
        made = self._applied(to_table(data))
        if isinstance(data, pa.Table):
            return made
        if isinstance(data, Mapping):
            return to_batch(made, "numpy")
        frame = to_batch(made, "pandas")
        for name in (field.name for field in made.schema if is_list(field.type)):
            frame[name] = row_values(made, name)
        index = getattr(data, "index", None)
        return frame if index is None or len(index) != len(frame) else frame.set_axis(index)

    def _applied(self, table: Table) -> Table:
        with self._named("a block"):
            return self._changed(table)

    def fit_status(self) -> Preprocessor.FitStatus:
        """Return whether the preprocessor is fitted."""
        status = Preprocessor.FitStatus
        if not self._is_fittable:
            return status.NOT_FITTABLE
        return status.FITTED if self._is_fitted else status.NOT_FITTED

    def has_stats(self) -> bool:
        """Return whether the preprocessor has learned values."""
        return bool(getattr(self, "stats_", None))

    def get_input_columns(self) -> list[str]:
        """Return the columns that the preprocessor reads, if known."""
        columns: list[str] = getattr(self, "_columns", getattr(self, "columns", []))
        return columns

    def get_output_columns(self) -> list[str]:
        """Return the columns that the preprocessor writes, if known."""
        columns: list[str] = getattr(self, "_output_columns", getattr(self, "output_columns", []))
        return columns

    def serialize(self) -> bytes:
        """Return the preprocessor as bytes."""
        return pickle.dumps(self)

    @staticmethod
    def deserialize(serialized: bytes) -> Preprocessor:
        """Return a preprocessor from the bytes of `serialize`.

        The bytes are a pickle, which may run any code: they must come from a source that you trust.
        """
        made = pickle.loads(serialized)
        if not isinstance(made, Preprocessor):
            raise ConfigError(f"these bytes are not a preprocessor, but a {type(made).__name__}")
        return made

    def _check_fitted(self) -> None:
        if self.fit_status() is Preprocessor.FitStatus.NOT_FITTED:
            raise ConfigError(
                f"call fit(dataset) of the {type(self).__name__} first, or fit_transform(dataset)"
            )

    @contextlib.contextmanager
    def _named(self, origin: str) -> Iterator[None]:
        """Raise errors that name the preprocessor and its input and keep the original type."""
        try:
            yield
        except DrayError:
            raise
        except Exception as error:
            called = type(self).__name__
            raise UserFunction(type(self), "transform", called=called).failed(
                error, origin
            ) from error

    _is_fittable = True
    _is_fitted = False

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        return {}

    def _transformed(self, ds: Dataset, batch_size: int | None) -> Dataset:
        form = self._own_form()
        if form is None:
            return ds.on_tables(self._applied)
        # Like other user functions, it may drop rows, and it does not get empty batches.
        own = getattr(self, f"_transform_{form}")
        return ds.map_batches(own, batch_format=form, batch_size=batch_size)

    def _own_form(self) -> str | None:
        """Return the batch format of a user's subclass; None if the class is one of dray's."""
        forms = ("pandas", "numpy")
        return next((form for form in forms if hasattr(self, f"_transform_{form}")), None)

    def _changed(self, table: Table) -> Table:
        form = self._own_form()
        if form is None:
            raise NotImplementedError(f"{type(self).__name__} has no _transform_pandas()")
        own = getattr(self, f"_transform_{form}")
        made, _ = handed_over([own(to_batch(table, form))])
        return to_table(made, f"what _transform_{form} returns")


class ColumnPreprocessor(Preprocessor):
    """A change of columns one by one; each becomes one column.

    Args:
        columns: The columns.
        output_columns: Names of the new columns; default: the names of `columns`.
    """

    def __init__(self, columns: Sequence[str], output_columns: Sequence[str] | None = None) -> None:
        self._pairs = outputs(columns, output_columns)

    @property
    def columns(self) -> list[str]:
        """The columns."""
        return [name for name, _ in self._pairs]

    @property
    def output_columns(self) -> list[str]:
        """The names of the new columns."""
        return [output for _, output in self._pairs]

    def _changed(self, table: Table) -> Table:
        check_column(table, [name for name, _ in self._pairs])
        for name, output in self._pairs:
            with self._named(f"column {name!r}"):
                table = put_column(table, output, self._column(name, table.column(name)))
        return table

    def _column(self, name: str, column: Column) -> Column:
        """Return the new column for a column."""
        raise NotImplementedError


def outputs(columns: Sequence[str], output_columns: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return pairs of the column to read and the column to write."""
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"columns must be a list of names, not {columns!r}")
    outputs = list(columns if output_columns is None else output_columns)
    if len(outputs) != len(columns):
        raise ConfigError(f"{len(columns)} columns cannot become {len(outputs)} output_columns")
    return list(zip(columns, outputs, strict=True))
