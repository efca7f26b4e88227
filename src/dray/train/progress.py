"""What a run shows: a live line on a terminal, plain lines elsewhere, and a closing summary."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dray.engines.outlet import Outlet, Outlets
from dray.errors import join_names
from dray.train.folding import Folder, Lines, Shown
from dray.train.state import State

_PLAIN_INTERVAL_S = 1.0


def format_metrics(metrics: Mapping[str, Any], limit: int = 6) -> str:
    """Returns metrics in one short line."""
    parts = [f"{name}={_short(value)}" for name, value in list(metrics.items())[:limit]]
    return " ".join(parts) + (" ..." if len(metrics) > limit else "")


def _short(value: Any) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.4g}"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


class Screen(Protocol):
    """Where lines go."""

    def line(self, text: str, stream: str = "stdout") -> None:
        """Shows one line, for good."""

    def status(self, describe: Callable[[], str]) -> None:
        """Shows a line that is replaced by the next one; `describe` says what is true now."""

    def close(self) -> None:
        """Takes the status line away."""


class PlainScreen:
    """Lines for a file or a pipe; a status becomes a line, at most one a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._outlets = Outlets()
        self._clock = clock
        self._last = -math.inf

    def line(self, text: str, stream: str = "stdout") -> None:
        """Shows one line."""
        self._outlets.line(stream, text)

    def status(self, describe: Callable[[], str]) -> None:
        """Shows a status as a line, unless there was one just now."""
        now = self._clock()
        if now - self._last >= _PLAIN_INTERVAL_S:
            self._last = now
            self.line(describe())

    def close(self) -> None:
        """There is nothing to take away."""


class LiveScreen:
    """A terminal: lines scroll by above one status line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._console = Console(file=Outlet("stdout"), highlight=False)  # type: ignore[arg-type]
        self._describe: Callable[[], str] = str
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            transient=True,
            refresh_per_second=2,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def line(self, text: str, stream: str = "stdout") -> None:
        """Shows one line above the status."""
        self._console.print(self._text(text), soft_wrap=True)

    def status(self, describe: Callable[[], str]) -> None:
        """Replaces the status, which is drawn again twice a second, so that its clock goes."""
        self._describe = describe

    def _draw(self) -> Any:
        return self._text(self._describe(), style="bold cyan", overflow="ellipsis", no_wrap=True)

    def close(self) -> None:
        """Takes the status line away."""
        self._live.stop()


class SilentScreen:
    """Shows nothing."""

    def line(self, text: str, stream: str = "stdout") -> None:
        """Shows nothing."""

    def status(self, describe: Callable[[], str]) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Does nothing."""


def open_screen(enabled: bool) -> Screen:
    """Returns the screen that fits where standard output goes."""
    if not enabled:
        return SilentScreen()
    return LiveScreen() if Outlet("stdout").isatty() else PlainScreen()


class Progress:
    """Tells the user how a run goes.

    Args:
        name: The run's name.
        path: The run's directory.
        screen: Where to.
        log_level: As in `LoggingConfig`.
    """

    def __init__(self, name: str, path: Path, screen: Screen, log_level: str = "INFO") -> None:
        self._name = name
        self._path = path
        self._screen = screen
        self._level = logging.getLevelName(log_level)
        self._folder = Folder()
        self._lines: dict[tuple[int, str], Lines] = {}
        self._start = time.monotonic()
        self._state = State.INITIALIZING
        self._latest = ""
        self.reports = 0
        self.checkpoint: Path | None = None

    def started(self, attempt: int, world_size: int, checkpoint: Any) -> None:
        """Workers are about to start."""
        workers = f"{world_size} worker{'s' if world_size != 1 else ''}"
        if checkpoint:
            self.checkpoint = checkpoint.path
        origin = f", going on from {checkpoint.path.name}" if checkpoint else ""
        self._info(f"{self._name}: attempt {attempt}, {workers}{origin}; logs in {self._path}")

    def state(self, state: State) -> None:
        """The run is in another state."""
        self._state = state
        if isinstance(self._screen, LiveScreen):
            self._show_status()

    def reported(self, report: int, metrics: Mapping[str, Any]) -> None:
        """Rank 0 has reported."""
        self.reports += 1
        self._latest = f"report {report}: {format_metrics(metrics)}"
        self._show_status()

    def committed(self, path: Path) -> None:
        """A checkpoint exists now."""
        self.checkpoint = path

    def warn(self, text: str) -> None:
        """Something the user should know."""
        if self._level <= logging.WARNING:
            self._screen.line(f"{self._name}: {text}", "stderr")

    def output(self, rank: int, stream: str, data: bytes) -> None:
        """A worker has written something."""
        lines = self._lines.setdefault((rank, stream), Lines())
        for text in lines.feed(data):
            self._show(rank, stream, text)

    def close(self) -> None:
        """Shows what was held back, and takes the status line away."""
        for (rank, stream), lines in self._lines.items():
            for text in lines.rest():
                self._show(rank, stream, text)
        for shown in self._folder.flush():
            self._print(shown)
        self._screen.close()

    def summary(self, state: State, best: str) -> None:
        """Shows how the run ended."""
        seconds = time.monotonic() - self._start
        reports = f"{self.reports} report{'s' if self.reports != 1 else ''}"
        parts = [f"{self._name}: {state.value} in {seconds:.1f} s, {reports}"]
        if best:
            parts.append(best)
        if self.checkpoint is not None:
            parts.append(f"checkpoint {self.checkpoint.name}")
        self._info(", ".join([*parts, f"in {self._path}"]))

    def _info(self, text: str) -> None:
        if self._level <= logging.INFO:
            self._screen.line(text)

    def _show_status(self) -> None:
        if self._level <= logging.INFO:
            self._screen.status(self._status)

    def _status(self) -> str:
        seconds = time.monotonic() - self._start
        text = f"{self._name}: {self._state.value} {seconds:.0f} s"
        return f"{text}, {self._latest}" if self._latest else text

    def _show(self, rank: int, stream: str, text: str) -> None:
        if self._level <= logging.INFO:
            for shown in self._folder.feed(rank, stream, text, time.monotonic()):
                self._print(shown)

    def _print(self, shown: Shown) -> None:
        if not shown.repeated:
            self._screen.line(f"(rank {shown.rank}) {shown.text}", shown.stream)
            return
        word = "ranks" if len(shown.ranks) > 1 else "rank"
        ranks = join_names([str(rank) for rank in shown.ranks])
        times = "once more" if shown.repeated == 1 else f"{shown.repeated} times more"
        self._screen.line(f"({word} {ranks}) {shown.text} [{times}]", shown.stream)
