"""Titles within output: that every line comes whole and under its own, however it is cut."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.engines.rpc.titled_output import TitledLines, TitledStream

Written = list[tuple[str, str]]


def written(parts: Sequence[tuple[str, str]]) -> bytes:
    """Return what streams write into a pipe; each part is a title and the text under it."""
    out, into = os.pipe()
    stream = TitledStream(into)
    for title, text in parts:
        stream.title = title
        stream.write(text)
        stream.end_title()
    stream.flush()
    os.close(into)
    with open(out, "rb") as file:
        return file.read()


def lines_of(data: bytes, cuts: Sequence[int]) -> Written:
    reader, places = TitledLines(), sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    return [
        (title, line.decode()) for piece in (*pieces, b"") for title, line in reader.feed(piece)
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["", "f", "réseau.<locals>.g"]), st.text("ab\n\x1b]dé;"))),
    st.lists(st.integers(0, 500)),
)
def test_lines_come_whole_and_under_their_titles(parts: Written, cuts: list[int]) -> None:
    expected: Written = []
    rest = ""  # what was written under no title goes on when the next part has none either
    for title, text in parts:
        if title and rest:
            expected.append(("", rest))
            rest = ""
        *whole, rest = (rest + text).split("\n")
        expected += [(title, line) for line in whole]
        if title and rest:
            expected.append((title, rest))
            rest = ""
    assert lines_of(written(parts), cuts) == expected + [("", rest)] * bool(rest)


def test_who_closes_the_output_closes_it_to_nobody_else() -> None:
    out, into = os.pipe()
    with TitledStream(into) as stream:
        stream.write("first\n")
    stream.write("second\n")
    os.close(into)
    with open(out, "rb") as file:
        assert file.read() == b"first\nsecond\n"


@pytest.mark.parametrize("title", ["a\nb\x07c", "x" * 5000])
def test_any_title_can_be_told(title: str) -> None:
    ((told, line),) = lines_of(written([(title, "text\n")]), [])
    assert line == "text"
    assert told == title.replace("\n", " ").replace("\x07", " ")[:1024]
