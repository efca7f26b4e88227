"""The choice of which results of a framework a callback reports, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from dray.errors import ConfigError

V = TypeVar("V")


def names_of(metrics: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    """Return new name -> name of what is chosen; None is all, under their own names."""
    if metrics is None:
        return None
    if isinstance(metrics, str):
        return {metrics: metrics}
    pairs = dict(metrics) if isinstance(metrics, Mapping) else {name: name for name in metrics}
    if not all(isinstance(name, str) for pair in pairs.items() for name in pair):
        raise ConfigError(f"metrics must be names of results, or a dict of names, not {metrics!r}")
    return pairs


def chosen(results: Mapping[str, V], names: Mapping[str, str] | None, there: str) -> dict[str, V]:
    """Return the results that are chosen, under their new names.

    Args:
        names: As `names_of` returns it.
        there: Clause that says for the error which results there are.
    """
    if names is None:
        return dict(results)
    unknown = [name for name in names.values() if name not in results]
    if unknown:
        raise ConfigError(f"metrics has {', '.join(map(repr, unknown))}, and {there}")
    return {new: results[name] for new, name in names.items()}
