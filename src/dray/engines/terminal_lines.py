r"""A worker's output as a terminal would show it: complete lines, and rows that still change.

Progress bars are written for a terminal of their own: they use carriage returns, and nested bars
move the cursor up and down. Several workers share one terminal, so none of them may move its
cursor. `Rows` instead follows the cursor of one stream, as far as bars need it, and yields a line
when the stream cannot reach it any more. Colours (SGR) stay in the text; all other control
sequences are removed.

In a stream whose cursor was ever moved up, a row above the cursor may be reached again, so the last
rows are held back. In other streams only rows that have been rewritten are held back. This module
does no I/O and has no clock.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

# A row that was not touched for this long, and is above the cursor, is whole.
SETTLED_S = 1.0
# Rows of rewritten text that are kept for a cursor that has not moved up yet: nested bars.
_BARS = 3
_FURTHEST = 100
_LONGEST_STRING = 4096

_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"
_STRING = rf"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{{0,{_LONGEST_STRING}}}"
_TOKEN = re.compile(
    rf"(?P<csi>{_CSI}[@-~])|{_STRING}(?:\x07|\x1b\\|\x9c)|(?P<escape>\x1b[ -/]*[0-~])"
    r"|(?P<text>[^\x00-\x08\x0a-\x1f\x7f-\x9f]+)|(?P<control>.)",
    re.DOTALL,
)
_UNFINISHED = re.compile(rf"(?:{_CSI}|{_STRING}\x1b?|\x1b[ -/]*)\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def without_colour(text: str) -> str:
    """Return a line as it is read."""
    return _COLOUR.sub("", text)


def ended(text: str) -> str:
    """Return a line whose colours end with it."""
    return f"{text}\x1b[0m" if "\x1b[" in text and not text.endswith("\x1b[0m") else text


def last_state(line: bytes) -> str:
    """Return what a whole line shows in the end, if no other line matters."""
    return ended("".join(Rows().feed(line, 0, last=True)))


@dataclass
class _Row:
    text: str = ""
    style: str = ""  # colours set after the cursor went back, for the text that comes
    back: bool = False  # the cursor is at the row's beginning: what comes replaces the text
    rewritten: bool = False
    touched: float = 0.0

    @property
    def blank(self) -> bool:
        return not without_colour(self.text).strip()

    def write(self, text: str) -> None:
        if self.back:
            self.text, self.style = self.style, ""
            self.back, self.rewritten = False, True
        self.text += text

    def colour(self, code: str) -> None:
        if self.back:
            self.style += code
        else:
            self.text += code

    def erase(self) -> None:
        self.text, self.style, self.rewritten = "", "", True


class Rows:
    """The rows of one stream that are not whole yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._unread = ""  # the beginning of a control sequence
        self._rows = [_Row()]
        self._at = 0
        self._reach = 0  # how far up the cursor was ever moved
        self._now = 0.0

    def feed(self, data: bytes, now: float, *, last: bool = False) -> list[str]:
        """Take what was written; return the lines that are whole now.

        Args:
            data: Output, cut anywhere.
            last: Whether the stream has ended.
        """
        self._now = now
        text = self._unread + self._decoder.decode(data, last)
        self._unread = ""
        if not _CONTROL.search(text) and self._is_plain():
            *lines, self._rows[0].text = (self._rows[0].text + text).split("\n")
            self._rows[0].touched = now
        else:
            unfinished = _UNFINISHED.search(text)
            if unfinished:
                text, self._unread = text[: unfinished.start()], unfinished[0]
            lines = [line for token in _TOKEN.finditer(text) for line in self._take(token)]
        return lines + self._end() if last else lines

    def settle(self, now: float) -> list[str]:
        """Return the lines above the cursor that nobody has touched for a while."""
        count = 0
        while count < self._at and now - self._rows[count].touched >= SETTLED_S:
            count += 1
        if count and count == self._at == len(self._rows) - 1:
            self._reach = 0
        return self._finish(count)

    @property
    def live(self) -> list[str]:
        """The text of the rows that may still change, as far as they show anything."""
        return [row.text.rstrip() for row in self._rows if not row.blank]

    def _is_plain(self) -> bool:
        row = self._rows[0]
        return len(self._rows) == 1 and not (row.back or row.rewritten or self._reach)

    def _end(self) -> list[str]:
        while self._rows and self._rows[-1].blank:
            self._rows.pop()
        lines = self._finish(len(self._rows))
        self._rows, self._at = [_Row()], 0
        return lines

    def _take(self, token: re.Match[str]) -> list[str]:
        row = self._rows[self._at]
        row.touched = self._now
        if token["text"]:
            row.write(token["text"])
            if not row.rewritten and not self._reach:
                return self._finish(self._at)  # no bar, so no bar above it is drawn any more
        elif token["csi"]:
            self._control(token["csi"], row)
        elif token["escape"] == "\x1bM":
            self._move(-1)
        elif token["control"] == "\n":
            if self._at == len(self._rows) - 1:
                self._rows.append(_Row(touched=self._now))
            self._at += 1
            self._rows[self._at].back = bool(self._rows[self._at].text)
            return self._finish(self._out_of_reach())
        elif token["control"] == "\r":
            row.back = True
        elif token["control"] == "\b":
            row.text, row.rewritten = row.text[:-1], True
        return []

    def _control(self, sequence: str, row: _Row) -> None:
        kind, digits = sequence[-1], sequence.lstrip("\x1b[\x9b")[:-1]
        count = min(int(digits), 1000) if digits.isdecimal() else 0
        if kind == "m" and _COLOUR.fullmatch(sequence):
            row.colour(sequence)
        elif kind in "AF":
            self._move(-max(count, 1))
        elif kind in "BE":
            self._move(max(count, 1))
        elif kind == "G" and count <= 1:
            row.back = True
        elif kind == "K" and (count == 2 or (count == 0 and row.back)):
            row.erase()
        elif kind == "J":
            for below in self._rows[self._at + 1 :]:
                below.erase()
            if row.back:
                row.erase()
        if kind in "EF":
            self._rows[self._at].back = True

    def _move(self, by: int) -> None:
        last, wanted = len(self._rows) - 1, self._at + by
        if wanted < 0:  # to a row that was taken for whole
            self._reach = min(self._reach - wanted, _FURTHEST)
        self._at = min(max(0, wanted), last)
        self._reach = max(self._reach, last - self._at)

    def _out_of_reach(self) -> int:
        count = max(0, self._at - max(self._reach, _BARS))
        while not self._reach and count < self._at and not self._rows[count].rewritten:
            count += 1
        return count

    def _finish(self, count: int) -> list[str]:
        """Return the first so many rows, which are whole."""
        if count <= 0:
            return []
        done, self._rows = self._rows[:count], self._rows[count:]
        self._at -= count
        return [
            row.text.rstrip() if row.rewritten else row.text
            for row in done
            if not (row.rewritten and row.blank)
        ]
