"""Reports in the files of ranks: which ones the driver takes, and in which order."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dray.engines.base import Actor, Died, Output, Posted
from dray.errors import WorkerDiedError
from dray.train.run.events import Signal
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


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(directory: RunDirectory, clock: Clock) -> Iterator[ReportFiles]:
    write(directory, 5)  # of an attempt before
    files = ReportFiles(directory)
    files.begin(2)
    with mock.patch("dray.train.run.report_files.time", clock):
        yield files
    files.end()


def write(directory: RunDirectory, *reports: int, told: bool = False, rank: int = 0) -> None:
    with contextlib.closing(directory.metrics(rank, 0)) as file:
        for report in reports:
            line = line_of(report, 0, 0.0, b'"metrics":{"n":%d}' % report)
            file.append_text(line[:-1] + TOLD + b"}" if told else line)


def heard(files: ReportFiles, event: object = None, rank: int | None = None) -> list[int]:
    """Return the reports that are taken, those as well for which the last one stands."""
    said = files.said_until(event, rank)
    reports = [message for _, message in said if isinstance(message, Reported)]
    assert all(each.metrics == {"metrics": {"n": each.report}} for each in reports)
    assert all(each.count == 1 for each in reports if each.files)
    return [n for each in reports for n in range(each.report - each.count + 1, each.report + 1)]


def told(report: int) -> Posted:
    return Posted(ACTOR, Reported(report, {"metrics": {"n": report}}, ("model",)))


def test_reports_are_heard_with_a_notice_and_before_what_is_said_later(
    directory: RunDirectory, files: ReportFiles, clock: Clock
) -> None:
    write(directory, 6, 7)
    assert heard(files) == []
    write(directory, 3, rank=1)
    assert heard(files, NOTICED, 1) == [3]
    write(directory, 4, rank=1)
    assert heard(files, NOTICED, 0) == [6, 7]
    assert files.due > clock.now  # a notice is no reason to read the files of others
    write(directory, 8)
    assert heard(files, told(9), 0) == [8, 9]
    assert files.due <= clock.now
    assert heard(files, told(10), 0) == [10]
    assert heard(files, Signal.READ_REPORTS) == [4]  # once, for both
    assert files.due > clock.now
    write(directory, 5, rank=1)
    assert heard(files, DIED, 0) == [5]


def test_a_rank_that_ends_before_it_can_give_a_notice_is_heard(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, 6)
    write(directory, 7, told=True)
    write(directory, 8)
    assert heard(files, DIED, 0) == [6, 8]


def test_what_a_notice_covers_is_read_now_and_then_until_another_would_have_come(
    directory: RunDirectory, files: ReportFiles, clock: Clock
) -> None:
    assert files.due == math.inf
    write(directory, 6)
    assert heard(files, NOTICED, 0) == [6]
    write(directory, 7)
    assert 0 < files.due <= 0.1
    printed = Output(ACTOR, "stdout", b"more and more, so that nothing else comes")
    assert heard(files, printed, 0) == []
    clock.now = files.due
    assert heard(files, printed, 0) == [7]
    looks: list[int] = []
    while files.due < math.inf:
        clock.now = files.due
        write(directory, 8 + len(looks))
        looks += heard(files, Signal.READ_REPORTS)
    assert NOTICE_S < clock.now < 1.5 * NOTICE_S
    assert looks == list(range(8, 8 + len(looks)))
    assert len(looks) <= 1.5 * NOTICE_S / 0.1
    write(directory, 100)
    assert heard(files) == []  # it would have given a notice


def test_the_files_of_all_ranks_with_notices_are_read_together(
    directory: RunDirectory, files: ReportFiles, clock: Clock
) -> None:
    write(directory, 6)
    assert heard(files, NOTICED, 0) == [6]
    clock.now = 0.09
    write(directory, 3, rank=1)
    assert heard(files, NOTICED, 1) == [3]  # its first notice waits for nothing
    write(directory, 7)
    write(directory, 4, rank=1)
    assert heard(files, NOTICED, 1) == []  # its next only says that there will be more
    assert files.due == pytest.approx(0.1)
    clock.now = files.due
    assert heard(files, Signal.READ_REPORTS) == [7, 4]


def test_a_file_is_read_no_more_after_the_end_of_its_rank(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, 6)
    assert heard(files, NOTICED, 0) == [6]
    write(directory, 7)
    assert heard(files, DIED, 0) == [7]
    assert files.due == math.inf


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


def test_a_message_that_never_comes_holds_up_nothing_beyond_the_next_one(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, 6, told=True)
    write(directory, 7)
    write(directory, 8, told=True)
    write(directory, 9)
    assert heard(files, NOTICED, 0) == []
    assert heard(files, told(8), 0) == [7, 8]  # in the order in which they were made
    assert heard(files) == [9]


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
    assert heard(files)[-1] == 8
    assert files.find(0, 7) is None
    assert files.find(0, 8) is not None


def test_long_lines_are_read(directory: RunDirectory, files: ReportFiles) -> None:
    text = "x" * 200_000
    with contextlib.closing(directory.metrics(0, 0)) as file:
        for report in (6, 7):
            file.append_text(line_of(report, 0, 0.0, b'"metrics":{"text":"%b"}' % text.encode()))
    said = files.said_until(NOTICED, 0)
    assert [message.metrics for _, message in said if isinstance(message, Reported)] == [
        {"metrics": {"text": text}}
    ] * 2


def test_a_report_for_which_a_later_one_stands_can_be_looked_up(
    directory: RunDirectory, files: ReportFiles
) -> None:
    write(directory, *range(6, 300))
    assert heard(files, NOTICED, 0) == list(range(6, 300))
    write(directory, 300)
    found = {n: files.find(0, n) for n in (5, 6, 7, 150, 299, 300)}
    assert found.pop(5) is None  # of the attempt before
    assert found.pop(300) is None  # not read yet
    for number, report in found.items():
        assert report is not None
        assert (report.report, report.metrics) == (number, {"metrics": {"n": number}})
    assert files.find(1, 6) is None
