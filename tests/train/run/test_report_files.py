"""Reports in the files of ranks: which ones the driver takes, and in which order."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dray.engines.base import Actor, Died, Posted
from dray.errors import WorkerDiedError
from dray.train.run.report_files import ReportFiles
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker.run_messages import NOTICE, NOTICE_S, TOLD, Reported, line_of

ACTOR: Any = mock.Mock(spec=Actor)
NOTICED = Posted(ACTOR, NOTICE)
DIED = Died(ACTOR, WorkerDiedError(-9), expected=False)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / "run")
    directory.storage.open()
    yield directory
    directory.storage.close()


@pytest.fixture
def files(directory: RunDirectory) -> Iterator[ReportFiles]:
    write(directory, 5)  # of an attempt before
    files = ReportFiles(directory)
    files.begin(2)
    yield files
    files.end()


def write(directory: RunDirectory, *reports: int, told: bool = False) -> None:
    with contextlib.closing(directory.metrics(0, 0)) as file:
        for report in reports:
            line = line_of(report, 0, 0.0, b'"metrics":{"n":%d}' % report)
            file.append_text(line[:-1] + TOLD + b"}" if told else line)


def heard(files: ReportFiles, event: object = None, rank: int | None = None) -> list[int]:
    said = files.said_until(event, rank)
    reports = [message for _, message in said if isinstance(message, Reported)]
    assert all(each.metrics == {"metrics": {"n": each.report}} for each in reports)
    return [each.report for each in reports]


def told(report: int) -> Posted:
    return Posted(ACTOR, Reported(report, {"metrics": {"n": report}}, ("model",)))


def test_reports_are_heard_with_a_notice_and_before_what_is_said_later(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, 6, 7)
    assert heard(files) == []
    assert heard(files, NOTICED, 0) == [6, 7]
    write(directory, 8)
    assert heard(files, told(0), 1) == [8, 0]
    write(directory, 9)
    assert heard(files, DIED, 0) == [9]
    assert heard(files) == []


def test_what_comes_after_the_notice_is_heard_when_its_time_is_over(
    directory: RunDirectory, files: ReportFiles
) -> None:
    assert files.due == math.inf
    write(directory, 6)
    assert heard(files, NOTICED, 0) == [6]
    write(directory, 7)
    left_s = files.due - time.monotonic()
    assert left_s < 2 * NOTICE_S
    time.sleep(max(left_s, 0.0))
    assert heard(files) == [7]
    assert files.due == math.inf
    write(directory, 8)
    assert heard(files) == []  # it would have given a notice


def test_reports_after_one_with_files_wait_for_its_message(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, 6)
    write(directory, 7, told=True)
    write(directory, 8)
    assert heard(files, NOTICED, 0) == [6]
    assert heard(files) == []
    assert heard(files, told(7), 0) == [7]
    assert heard(files) == [8]


def test_a_message_that_never_comes_holds_up_nothing_beyond_the_next_one_or_the_end(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, 6, told=True)
    write(directory, 7)
    write(directory, 8, told=True)
    write(directory, 9)
    assert heard(files, NOTICED, 0) == []
    assert heard(files, told(8), 0) == [8]
    assert heard(files, DIED, 0) == [7, 9]


def test_a_line_is_taken_once_it_is_whole(directory: RunDirectory, files: ReportFiles) -> None:
    path = Path(str(directory.path), "metrics", "rank-00000.jsonl")
    write(directory, 6)
    written = path.read_bytes()
    line = written.splitlines(keepends=True)[-1]
    path.write_bytes(written[: -len(line) // 2])
    assert heard(files, NOTICED, 0) == []
    path.write_bytes(written)
    assert heard(files) == [6]
    with path.open("ab") as file:
        file.write(line.replace(b'"report":6', b'"report":7') + b"\n")  # its checksum does not fit
    write(directory, 8)
    assert heard(files) == [8]


def test_long_lines_are_read(directory: RunDirectory, files: ReportFiles) -> None:
    text = "x" * 200_000
    with contextlib.closing(directory.metrics(0, 0)) as file:
        for report in (6, 7):
            file.append_text(line_of(report, 0, 0.0, b'"metrics":{"text":"%b"}' % text.encode()))
    said = files.said_until(NOTICED, 0)
    assert [message.metrics for _, message in said if isinstance(message, Reported)] == [
        {"metrics": {"text": text}}
    ] * 2
