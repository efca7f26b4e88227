"""The output of a run: bars of its workers, its state, their lines, and a closing summary."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from dray.engines.terminal_lines import Rows
from dray.errors import visible
from dray.status import TrainingStatus, WorkerStatus
from dray.train.run.events import Signal
from dray.train.run.output.line_dedup import LineDeduplicator, Shown, describe_ranks
from dray.train.run.output.reading import describe_reading
from dray.train.run.output.screens import Screen
from dray.train.run.state import State
from dray.train.storage.metrics_codec import decode
from dray.train.storage.place import Place
from dray.train.worker.run_messages import Reported

# Of so many ranks the bars are shown, and of so many workers the processes.
_MOST_SHOWN = 8
_HERE = ("127.0.0.1", "localhost")


def format_metrics(metrics: Mapping[str, object]) -> str:
    """Return the first metrics in one short line."""
    parts = [f"{name}={_short(value)}" for name, value in list(metrics.items())[:6]]
    return visible(" ".join(parts)) + (" ..." if len(metrics) > len(parts) else "")


def _short(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


def _plain(value: object) -> object:
    """Return a metric as a JSON-compatible value."""
    finite = isinstance(value, float) and math.isfinite(value)
    return value if finite or isinstance(value, int | str | None) else str(value)


class Progress:
    """Tells the user how a run goes.

    Args:
        log_level: As in `LoggingConfig`.
        fold: Whether a line that ranks repeat is shown once, with how often it came.
    """

    def __init__(
        self, name: str, path: Place, screen: Screen, log_level: str = "INFO", *, fold: bool = True
    ) -> None:
        self._name = name
        self._path = path
        self._screen = screen
        self._level = logging.getLevelName(log_level)
        self._folder = LineDeduplicator() if fold else LineDeduplicator(window_s=0)
        self._rows: dict[tuple[int, str], Rows] = {}
        self._start = time.monotonic()
        self._state = State.INITIALIZING
        self._reading = ""
        self._attempt = 0
        self._workers: Sequence[Mapping[str, Any]] = ()
        self._report: tuple[int, Mapping[str, object], float] | None = None
        self.reports = 0
        self.checkpoint: Place | None = None

    def started(self, attempt: int, world_size: int, checkpoint: Any) -> None:
        """Tell that workers are about to start."""
        self._attempt, self._workers = attempt, ()
        workers = f"{world_size} worker{'s' if world_size != 1 else ''}"
        if checkpoint:
            self.checkpoint = checkpoint.path
        origin = f", going on from {checkpoint.path.name}" if checkpoint else ""
        self._info(f"{self._name}: attempt {attempt}, {workers}{origin}; logs in {self._path}")

    def placed(self, workers: Sequence[Mapping[str, Any]], framework: str = "") -> None:
        """Tell that workers have ranks now, and are about to train.

        Args:
            workers: For each rank its pid, node, address and devices.
            framework: Their connection, in a few words.
        """
        self._workers = workers
        self._info(f"{self._name}: {describe_workers(workers)}{framework and f'; {framework}'}")

    def state(self, state: State) -> None:
        """Take note that the run is in another state."""
        self._state = state
        self._screen_status()

    def heard(self, said: Iterable[tuple[int, object]]) -> bool:
        """Take note of what ranks have said: rank 0's newest metrics are shown.

        Returns:
            Whether there are reports among it.
        """
        reports = [(rank, each) for rank, each in said if isinstance(each, Reported)]
        if shown := [each for rank, each in reports if rank == 0 and each.has_metrics]:
            newest, first = shown[-1], not self.reports
            self.reports += sum(each.count for each in shown)
            self._reading = describe_reading(newest, len(self._workers))
            self._report = newest.report, decode(newest.metrics), time.monotonic()
            self._screen_status(news=first)
        return bool(reports)

    def committed(self, path: Place) -> None:
        """Take note that a checkpoint exists now."""
        self.checkpoint = path

    def warn(self, text: str) -> None:
        """Tell something that the user should know."""
        if self._level <= logging.WARNING:
            self._screen.lines([f"{self._name}: {text}"], "stderr")

    def output(self, rank: int, stream: str, data: bytes) -> None:
        """Show what a worker has written."""
        if self._level > logging.INFO:
            return
        now = time.monotonic()
        rows = self._rows.setdefault((rank, stream), Rows())
        self._show(now, [(rank, stream, text) for text in rows.feed(data, now)])
        self._screen_status()

    def next_event(self, mailbox: queue.SimpleQueue[object], due: float = math.inf) -> object:
        """Return what comes next into a mailbox, and show meanwhile which lines came again.

        Args:
            due: Time by the monotonic clock at which it is `Signal.READ_REPORTS`.
        """
        while True:
            left_s = min(self._folder.due, due) - time.monotonic()
            try:
                return mailbox.get(timeout=max(0.0, left_s) if math.isfinite(left_s) else None)
            except queue.Empty:
                if time.monotonic() >= due:
                    return Signal.READ_REPORTS
                self._print(list(self._folder.expire(time.monotonic())))

    def training(self, waits: Sequence[str]) -> TrainingStatus:
        """Return what `dray status` shows of the run. May be called from any thread.

        Args:
            waits: Awaited ranks, in words.
        """
        now = time.monotonic()
        report, metrics, at = self._report or (None, {}, now)
        return TrainingStatus(
            name=self._name,
            path=str(self._path),
            state=self._state.value,
            attempt=self._attempt,
            seconds=round(now - self._start, 1),
            workers=[
                WorkerStatus(
                    rank=rank,
                    pid=worker["pid"],
                    node=worker["node"],
                    address=worker["address"],
                    devices={name: list(ids) for name, ids in worker.get("devices", {}).items()},
                )
                for rank, worker in enumerate(self._workers)
            ],
            report=report,
            metrics={name: _plain(value) for name, value in metrics.items()},
            since_report_s=None if report is None else round(now - at, 1),
            checkpoint=None if self.checkpoint is None else self.checkpoint.name,
            waits=list(waits),
        )

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Make way for what callbacks print."""
        return self._screen.aside()

    def close(self) -> None:
        """Show what was held back, and take the status away."""
        now = time.monotonic()
        ended, self._rows = self._rows, {}
        rests = {key: rows.feed(b"", now, last=True) for key, rows in ended.items()}
        self._show(now, [(*key, text) for key, texts in rests.items() for text in texts])
        self._print(list(self._folder.flush()))
        self._screen.close()

    def summary(self, state: State, best: str) -> None:
        """Show how the run ended."""
        seconds = time.monotonic() - self._start
        reports = f"{self.reports} report{'s' if self.reports != 1 else ''}"
        if not self.reports:
            reports = "no report of rank 0"
        parts = [f"{self._name}: {state.value} in {seconds:.1f} s, {reports}"]
        if best:
            parts.append(best)
        if self.checkpoint is not None:
            parts.append(f"checkpoint {self.checkpoint.name}")
        self._info(", ".join([*parts, f"in {self._path}"]))

    def _info(self, text: str) -> None:
        if self._level <= logging.INFO:
            self._screen.lines([text])

    def _screen_status(self, *, news: bool = False) -> None:
        if self._level <= logging.INFO:
            self._screen.status(self._describe, news=news)

    def _describe(self) -> list[str]:
        """Return the bars of workers, and the state of the run. May be called from any thread."""
        bars = list(self._bars())
        ranks = sorted({rank for rank, _ in bars})
        shown = [line for rank, line in bars if rank in ranks[:_MOST_SHOWN]]
        if ranks[_MOST_SHOWN:]:
            shown.append(f"(and {describe_ranks(ranks[_MOST_SHOWN:])})")
        seconds = time.monotonic() - self._start
        report, metrics, _ = self._report or (None, {}, 0.0)
        latest = "" if report is None else f"report {report}"
        if metrics:
            latest += f": {format_metrics(metrics)}"
        parts = [f"{self._name}: {self._state.value} {seconds:.0f} s", latest, self._reading]
        if self.checkpoint is not None:
            parts.append(self.checkpoint.name)
        return [*shown, ", ".join(filter(None, parts))]

    def _bars(self) -> Iterator[tuple[int, str]]:
        for (rank, _), rows in sorted(self._rows.copy().items()):
            for text in rows.live:
                yield rank, f"(rank {rank}) {text}"

    def _show(self, now: float, lines: Sequence[tuple[int, str, str]]) -> None:
        settled = [(*key, text) for key, rows in self._rows.items() for text in rows.settle(now)]
        feed = self._folder.feed
        self._print([shown for line in (*lines, *settled) for shown in feed(*line, now)])

    def _print(self, lines: Sequence[Shown]) -> None:
        for stream, group in itertools.groupby(lines, lambda shown: shown.stream):
            self._screen.lines([shown.line for shown in group], stream)


def describe_workers(workers: Sequence[Mapping[str, Any]]) -> str:
    """Return in one line where the workers of a run are, by rank."""
    nodes: dict[str, list[str]] = {}
    for rank, worker in enumerate(workers[:_MOST_SHOWN]):
        nodes.setdefault(worker["address"], []).append(f"rank {rank} pid {worker['pid']}")
    more = len(workers) - _MOST_SHOWN
    places = [
        f"{', '.join(ranks)} on {'this machine' if address in _HERE else address}"
        for address, ranks in nodes.items()
    ]
    return "; ".join(places) + (f"; and {more} more" if more > 0 else "")
