"""The reading of datasets, as reports describe it: the position of ranks and their waiting time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dray.train.worker.run_messages import Reported


def describe_reading(message: Reported, ranks: int) -> str:
    """Return in a few words how far a rank is in its datasets."""
    positions: Mapping[str, Any] = message.positions or {}
    waited = message.waited or {}
    return ", ".join(
        f"{name} epoch {place['epoch']}{_part(place, ranks)}, waited {waited[name]:.1f} s"
        for name, place in positions.items()
        if name in waited
    )


def _part(place: Mapping[str, Any], ranks: int) -> str:
    if not place["rows"]:
        return f" row {place['taken'] * ranks}" if place["taken"] else ""
    beyond = sum((last - first) // step + 1 for first, last, step in place["seen"]["beyond"])
    seen = place["seen"]["below"] + beyond + place["taken"] * ranks
    return f" {min(100, 100 * seen // place['rows'])} %"


class ReadingRecord:
    """Records, whenever a rank has begun another epoch of a dataset, how long it waited before."""

    def __init__(self, record: Callable[..., object]) -> None:
        self._record = record
        self._last: dict[tuple[int, str], tuple[int, float]] = {}

    def told(self, rank: int, message: Reported) -> None:
        """Take note of a report."""
        positions: Mapping[str, Any] = message.positions or {}
        for name, waited in (message.waited or {}).items():
            epoch = int(positions[name]["epoch"])
            first = epoch if positions[name]["taken"] else 0
            before, then = self._last.setdefault((rank, name), (first, 0.0))
            if epoch == before:
                continue
            self._last[rank, name] = epoch, waited
            self._record(
                "dataset read",
                rank=rank,
                dataset=name,
                epoch=epoch - 1,
                waited_s=round(waited - then, 3),
            )
