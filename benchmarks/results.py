"""The results of a case: medians, ranges, ratios, and targets that are met or missed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.cases import Case, Comparison, Sample


@dataclass(frozen=True)
class Verdict:
    """A comparison and its figures; a figure is None if it was not measured."""

    comparison: Comparison
    ratio: float | None  # of the medians; the median itself if there is no peer
    paired: float | None  # the median of the ratios within each round

    @property
    def met(self) -> bool | None:
        """True if both figures are within the target; None if there is no target or no figure."""
        target = self.comparison.target
        if target is None or self.ratio is None or self.paired is None:
            return None
        if self.comparison.at_least:
            return min(self.ratio, self.paired) >= target
        return max(self.ratio, self.paired) <= target


@dataclass(frozen=True)
class Outcome:
    """All samples of a case, round by round; None for a run that failed."""

    measure: str
    case: Case
    samples: Mapping[str, Sequence[Sample | None]]

    def quantities(self, contestant: str) -> list[str]:
        """Return the names of the measured quantities of a contestant."""
        samples = [sample for sample in self.samples[contestant] if sample]
        return list(samples[0].values) if samples else []

    def series(self, contestant: str, quantity: str) -> list[float | None]:
        """Return a quantity round by round."""
        samples = self.samples[contestant]
        return [None if sample is None else sample.values[quantity] for sample in samples]

    def verdicts(self) -> list[Verdict]:
        """Return the outcome of each comparison."""
        return [self._verdict(comparison) for comparison in self.case.comparisons]

    def _verdict(self, comparison: Comparison) -> Verdict:
        figures = self.series(comparison.subject, comparison.quantity)
        if comparison.peer is None:
            middle = median(figures)
            return Verdict(comparison, middle, middle)
        peers = self.series(comparison.peer, comparison.quantity)
        pairs = zip(figures, peers, strict=False)
        paired = [ours / theirs for ours, theirs in pairs if ours is not None and theirs]
        ours, theirs = median(figures), median(peers)
        ratio = ours / theirs if ours is not None and theirs else None
        return Verdict(comparison, ratio, median(paired))

    def as_json(self) -> dict[str, Any]:
        """Return all results, with every sample."""
        return {
            "measure": self.measure,
            "case": self.case.title,
            "unit": self.case.unit,
            "samples": {
                name: [sample and asdict(sample) for sample in samples]
                for name, samples in self.samples.items()
            },
            "comparisons": [
                {
                    **asdict(verdict.comparison),
                    "ratio_of_medians": verdict.ratio,
                    "median_of_paired_ratios": verdict.paired,
                    "met": verdict.met,
                }
                for verdict in self.verdicts()
            ],
        }


def median(figures: Sequence[float | None]) -> float | None:
    """Return the median of the measured values; None if there are none."""
    measured = [figure for figure in figures if figure is not None]
    return statistics.median(measured) if measured else None
