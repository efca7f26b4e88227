"""The tables of results, as Markdown."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.results import Outcome, Verdict

NOT_MEASURED = "not measured"


def render(outcomes: Sequence[Outcome], facts: Sequence[str]) -> str:
    """Return the whole page."""
    alone = [outcome for outcome in outcomes if not outcome.case.nodes]
    on_cluster = [outcome for outcome in outcomes if outcome.case.nodes]
    processes = [row for outcome in outcomes for row in _process_rows(outcome)]
    parts = ["# Benchmarks", "\n".join(f"- {fact}" for fact in facts)]
    if alone:
        parts += ["## Targets and ratios", _comparisons(alone), "## Figures", _figures(alone)]
    if processes:
        parts += ["## Processes of the runtime, last run", _table(_PROCESS_HEAD, processes)]
    if on_cluster:
        parts += ["## On a Ray cluster", _ON_CLUSTER]
        parts += [_comparisons(on_cluster), _figures(on_cluster)]
    return "\n\n".join(parts) + "\n"


_ON_CLUSTER = (
    "All programs ran on Ray clusters that had been started before, on this machine: of one node "
    "with 4 CPUs, and for scaling of a head and three nodes with 4 CPUs each. Times begin when "
    "`fit()` is called in a driver that is connected already, or when a worker is killed."
)
_COMPARISON_HEAD = (
    "Measure",
    "Case",
    "What",
    "Ratio of medians",
    "Median of paired ratios",
    "Target",
    "Met",
)
_FIGURE_HEAD = ("Measure", "Case", "Quantity", "Who", "Median", "Min..max", "Samples")
_PROCESS_HEAD = ("Whose", "Case", "Process", "Private", "Proportional")


def _comparisons(outcomes: Sequence[Outcome]) -> str:
    rows = [row for outcome in outcomes for row in _comparison_rows(outcome)]
    return _table(_COMPARISON_HEAD, rows)


def _figures(outcomes: Sequence[Outcome]) -> str:
    return _table(_FIGURE_HEAD, [row for outcome in outcomes for row in _figure_rows(outcome)])


def _comparison_rows(outcome: Outcome) -> Iterator[Sequence[str]]:
    for verdict in outcome.verdicts():
        comparison = verdict.comparison
        what = f"{comparison.quantity}: {comparison.subject}"
        if comparison.peer:
            what += f" / {comparison.peer}"
        yield (
            outcome.measure,
            outcome.case.title,
            what,
            _amount(verdict.ratio, verdict, outcome.case.unit),
            _amount(verdict.paired, verdict, outcome.case.unit) if comparison.peer else "",
            _target(verdict, outcome.case.unit),
            "" if verdict.met is None else "yes" if verdict.met else "**no**",
        )


def _target(verdict: Verdict, unit: str) -> str:
    target = verdict.comparison.target
    if target is None:
        return ""
    sign = "≥" if verdict.comparison.at_least else "≤"
    return f"{sign} {_amount(target, verdict, unit)}"


def _amount(value: float | None, verdict: Verdict, unit: str) -> str:
    """Format a ratio, or if there is no peer, a figure."""
    if value is None:
        return NOT_MEASURED
    if verdict.comparison.peer is None:
        return _figure(value, unit)
    return f"1/{1 / value:.0f}" if 0 < value < 0.1 else f"{value:.3g}"


def _figure_rows(outcome: Outcome) -> Iterator[Sequence[str]]:
    unit = outcome.case.unit
    for name, samples in outcome.samples.items():
        if not any(samples):
            yield outcome.measure, outcome.case.title, "", name, NOT_MEASURED, "", "0"
        for quantity in outcome.quantities(name):
            figures = sorted(x for x in outcome.series(name, quantity) if x is not None)
            middle, least, most = (
                _figure(x, unit) for x in (statistics.median(figures), figures[0], figures[-1])
            )
            spread = f"{least} .. {most}"
            count = str(len(figures))
            yield outcome.measure, outcome.case.title, quantity, name, middle, spread, count


def _process_rows(outcome: Outcome) -> Iterator[Sequence[str]]:
    if outcome.measure != "memory":
        return
    for name, samples in outcome.samples.items():
        measured = [sample for sample in samples if sample]
        for process in measured[-1].details if measured else ():
            yield (
                name,
                outcome.case.title,
                process["process"],
                _figure(process["private"], "MB"),
                _figure(process["proportional"], "MB"),
            )


def _figure(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:.1f} {unit}"
    for scale, name in ((1, "s"), (1e3, "ms")):
        if abs(value) * scale >= 1:
            return f"{value * scale:.3g} {name}"
    return f"{value * 1e6:.3g} µs"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
