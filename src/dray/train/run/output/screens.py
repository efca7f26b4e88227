"""Screens for a run's lines: a terminal, a notebook, a file or pipe, or none."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from dray.engines.console import OUTLETS, show_lines
from dray.engines.terminal_lines import ended

# Lines with the state of a run in a log file.
_PLAIN_INTERVAL_S = 60.0
_REDRAWS_PER_S = 2.0

# Returns the lines that are true now: bars of workers, and last the state of the run.
Describe = Callable[[], Sequence[str]]


class Screen:
    """A target of lines; this one shows nothing."""

    def lines(self, texts: Sequence[str], stream: str = "stdout") -> None:
        """Show lines, for good."""

    def status(self, describe: Describe, *, news: bool = False) -> None:
        """Show lines that are replaced by the next ones.

        Args:
            describe: Returns them; it may be called later, from any thread.
            news: Whether the state shows something for the first time.
        """

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Make way for what others print while the context lasts."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Take the status away."""


class PlainScreen(Screen):
    """A file or a pipe: lines, and a status at most once a minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def lines(self, texts: Sequence[str], stream: str = "stdout") -> None:
        """Show lines."""
        show_lines(stream, map(ended, texts))

    def status(self, describe: Describe, *, news: bool = False) -> None:
        """Show the status as lines, unless there was one less than a minute ago."""
        now = time.monotonic()
        if news or now - self._last >= _PLAIN_INTERVAL_S:
            self._last = now
            lines = describe()
            self.lines(lines[-1:] if news else lines)


class NotebookScreen(PlainScreen):
    """A notebook's cell: lines, and one status that is redrawn in place."""

    def __init__(self) -> None:
        super().__init__()
        from IPython.display import display

        self._display: Any = display
        self._handle: Any = None
        self._describe: Describe = tuple
        self._shown = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="dray-status", daemon=True)

    def status(self, describe: Describe, *, news: bool = False) -> None:
        """Replace the status, which is drawn again twice a second, so that its clock goes."""
        self._describe = describe
        if self._handle is None:
            self._shown = self._text()
            self._handle = self._display(_plain(self._shown), raw=True, display_id=True)
            self._thread.start()

    def _text(self) -> str:
        return "\n".join(map(ended, self._describe()))

    def _redraw(self) -> None:
        while not self._closed.wait(1 / _REDRAWS_PER_S):
            self._show(self._text())

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._handle.update(_plain(text), raw=True)

    def close(self) -> None:
        """Clear the status."""
        self._closed.set()
        if self._handle is not None:
            self._thread.join()
            self._show("")


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}


class LiveScreen(Screen):
    """A terminal: lines scroll by above the status of all runs of this program."""

    def __init__(self) -> None:
        self._describe: Describe = tuple
        self._terminal = Terminal.open(self)

    def describe(self) -> Sequence[str]:
        """Return the run's status, whose last line is the state of the run."""
        *bars, state = self._describe() or [""]
        return [*bars, f"\x1b[1;36m{state}\x1b[0m"] if state else bars

    def lines(self, texts: Sequence[str], stream: str = "stdout") -> None:
        """Show lines above the status."""
        self._terminal.lines(texts)

    def status(self, describe: Describe, *, news: bool = False) -> None:
        """Replace the status, which is drawn again twice a second, so that its clock goes."""
        self._describe = describe

    def aside(self) -> contextlib.AbstractContextManager[None]:
        """Take the status away while the context lasts."""
        return self._terminal.aside()

    def close(self) -> None:
        """Take the run's status away."""
        self._terminal.leave(self)


class Terminal:
    """The one area of the terminal that is redrawn; the runs of this program share it."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _open: ClassVar[Terminal | None] = None

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text = Text
        self._screens: list[LiveScreen] = []
        self._hidden = 0
        self._drawn = False
        self._console = Console(file=OUTLETS["stdout"], highlight=False)  # type: ignore[arg-type]
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            transient=True,
            refresh_per_second=_REDRAWS_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @classmethod
    def open(cls, screen: LiveScreen) -> Terminal:
        """Return the terminal, on which a run's status is shown from now on."""
        with cls._lock:
            terminal = cls._open = cls._open or cls()
            terminal._screens.append(screen)
            if len(terminal._screens) == 1:
                terminal._live.start()
            return terminal

    def leave(self, screen: LiveScreen) -> None:
        """Take a run's status away."""
        with self._lock:
            if screen in self._screens:
                self._screens.remove(screen)
                if not self._screens:
                    self._live.stop()
                    Terminal._open = None

    def lines(self, texts: Sequence[str]) -> None:
        """Show lines above the status."""
        self._console.print(*map(self._text.from_ansi, texts), sep="\n", soft_wrap=True)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Leave an empty line where the status was while the context lasts, and until it is due."""
        with self._lock:
            self._hidden += 1
            if self._screens and self._drawn:  # it is not, if there was a context just now
                self._live.refresh()
        try:
            yield
        finally:
            with self._lock:
                self._hidden -= 1

    def _draw(self) -> Any:
        from rich.console import Group

        lines = [] if self._hidden else [s for screen in self._screens for s in screen.describe()]
        self._drawn = bool(lines)
        most = max(1, self._console.height - 2)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"... and {len(lines) - most + 1} more"]
        texts = [self._text.from_ansi(line) for line in lines] or [self._text()]
        for text in texts:
            text.no_wrap, text.overflow = True, "ellipsis"
        return Group(*texts)


def _in_notebook() -> bool:
    """Return whether this program is the kernel of a notebook, which shows displays."""
    module = sys.modules.get("IPython")
    return getattr(module and module.get_ipython(), "kernel", None) is not None


def open_screen(enabled: bool) -> Screen:
    """Return the screen that fits where standard output goes."""
    if not enabled:
        return Screen()
    if _in_notebook():
        return NotebookScreen()
    return LiveScreen() if OUTLETS["stdout"].isatty() else PlainScreen()
