"""Cases that compare dray with an earlier dray: no measure may be slower."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.cases import DRAY, DRAY_ON_RAY, Case, Comparison

# Machines are noisy: figures within this factor count as equal.
_TOLERANCE = 1.05


def against_before(cases: Sequence[Case], before: Sequence[Case]) -> Iterator[Case]:
    """Yield each case that has dray and needs no cluster, with this and the earlier dray in turn.

    Args:
        cases: The cases of a measure for this dray.
        before: The same cases for the earlier dray.
    """
    for now, then in zip(cases, before, strict=True):
        names = [name for name in now.contestants if _is_dray(name)]
        if not names or now.nodes:
            continue
        contestants = {}
        for name in names:
            contestants[name] = now.contestants[name]
            contestants[_earlier(name)] = then.contestants[name]
        quantities = dict.fromkeys(
            (each.quantity, each.subject) for each in now.comparisons if each.subject in names
        )
        more_is_better = now.unit not in ("s", "MB")
        comparisons = tuple(
            Comparison(
                quantity,
                name,
                _earlier(name),
                target=1 / _TOLERANCE if more_is_better else _TOLERANCE,
                at_least=more_is_better,
            )
            for quantity, name in quantities
        )
        yield replace(now, contestants=contestants, comparisons=comparisons)


def _is_dray(name: str) -> bool:
    return name.startswith(DRAY) and not name.startswith(DRAY_ON_RAY)


def _earlier(name: str) -> str:
    return f"{name}, before"
