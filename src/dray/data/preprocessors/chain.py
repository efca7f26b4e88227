"""The chain of preprocessors, applied in sequence."""

from __future__ import annotations

from dray.data.dataset import Dataset
from dray.data.forms.blocks import Table, Value
from dray.data.preprocessors.preprocessor import Preprocessor


class Chain(Preprocessor):
    """A sequence of preprocessors.

    Args:
        preprocessors: The preprocessors; each learns from the output of the previous ones.

    Example:
        >>> import dray.data
        >>> from dray.data.preprocessors import Chain, Concatenator, MinMaxScaler
        >>> chain = Chain(MinMaxScaler(["id"]), Concatenator(["id"], "x"))
        >>> chain.fit_transform(dray.data.range(2)).take_batch(2)["x"].tolist()
        [[0.0], [1.0]]
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        self.preprocessors = preprocessors

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.preprocessors))})"

    def fit_status(self) -> Preprocessor.FitStatus:
        """Return whether the fittable preprocessors of the chain are fitted."""
        status = Preprocessor.FitStatus
        found = {each.fit_status() for each in self.preprocessors} - {status.NOT_FITTABLE}
        if len(found) > 1:
            return status.PARTIALLY_FITTED
        return found.pop() if found else status.NOT_FITTABLE

    def _learned(self, ds: Dataset) -> dict[str, Value]:
        for each in self.preprocessors:
            ds = each.fit_transform(ds)
        return {}

    def _check_fitted(self) -> None:
        for each in self.preprocessors:
            each._check_fitted()

    def _transformed(self, ds: Dataset, batch_size: int | None) -> Dataset:
        for each in self.preprocessors:
            ds = each._transformed(ds, batch_size)
        return ds

    def _changed(self, table: Table) -> Table:
        for each in self.preprocessors:
            table = each._applied(table)
        return table
