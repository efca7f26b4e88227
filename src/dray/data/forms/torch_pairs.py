"""Pairs of features and labels as torch tensors, for `to_torch`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from dray.data.forms.blocks import Arrays
from dray.data.forms.names import check_column
from dray.data.forms.tensors import to_tensors

if TYPE_CHECKING:
    import torch
    from torch.utils.data import IterableDataset

FeatureColumns: TypeAlias = (
    Sequence[str] | Sequence[Sequence[str]] | Mapping[str, Sequence[str]] | None
)


@dataclass(frozen=True)
class Pairs:
    """A function from a batch to its features and its label.

    Attributes:
        label: The column of the label, if any.
        features: The columns of one tensor, or of several in a list or dict; None selects all
            others.
        feature_dtypes: The type of the features, or the type of each of several tensors.
        label_as_column: Whether a label with one number per row has the shape (rows, 1).
        features_as_columns: Whether features with one number per row have that shape.
    """

    label: str | None
    features: FeatureColumns
    label_dtype: torch.dtype | None
    feature_dtypes: Any
    label_as_column: bool
    features_as_columns: bool

    def __call__(self, batch: Arrays) -> tuple[object, torch.Tensor | None]:
        """Return the features and the label.

        Raises:
            ConfigError: A column is missing, or cannot be a tensor.
        """
        label = None
        if self.label is not None:
            label = _joined(batch, self.label, self.label_dtype, self.label_as_column)
        columns, as_columns = self.features, self.features_as_columns
        if columns is None:
            columns = [name for name in batch if name != self.label]
        if isinstance(columns, Mapping):
            kinds = self.feature_dtypes or {}
            return {
                name: _joined(batch, group, kinds.get(name), as_columns)
                for name, group in columns.items()
            }, label
        if any(not isinstance(group, str) for group in columns):
            kinds = self.feature_dtypes or [None] * len(columns)
            groups = zip(columns, kinds, strict=True)
            return [_joined(batch, group, kind, as_columns) for group, kind in groups], label
        names = [name for name in columns if isinstance(name, str)]
        return _joined(batch, names, self.feature_dtypes, as_columns), label


def _joined(
    batch: Arrays, columns: str | Sequence[str], dtype: torch.dtype | None, as_columns: bool
) -> torch.Tensor:
    import torch

    names = [columns] if isinstance(columns, str) else columns
    check_column(batch, names)
    tensors = list(to_tensors({name: batch[name] for name in names}, dtype).values())
    if as_columns:
        tensors = [each.unsqueeze(1) if each.dim() == 1 else each for each in tensors]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=-1)


def as_iterable_dataset(batches: Iterable[object]) -> IterableDataset:
    """Return a torch IterableDataset of batches, which it stores as its attribute `batches`."""
    from torch.utils.data import IterableDataset

    class Batches(IterableDataset):  # type: ignore[misc]
        """A dataset whose items are batches."""

        def __init__(self) -> None:
            self.batches = batches

        def __iter__(self) -> Iterator[object]:
            return iter(batches)

    return Batches()
