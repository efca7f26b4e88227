"""Decisions without I/O: reports, retention, failures, folding."""

from __future__ import annotations

import bdb
import builtins
import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import (
    ConfigError,
    ControllerError,
    DrayError,
    InfeasibleError,
    MissingDependencyError,
    NotInTrainingError,
    RemoteTraceback,
    StorageError,
    TrainingFailedError,
    WorkerDiedError,
    WorkerGroupError,
)
from dray.train.config import CheckpointConfig
from dray.train.run.failure import FailureLog, FailurePolicy, to_driver_error, to_error
from dray.train.run.output.line_dedup import LineDeduplicator, Shown, describe_ranks
from dray.train.run.report_tracker import MOST_OPEN, CollectiveTracker, ReportTracker
from dray.train.run.retention import checkpoints_to_delete, ranked
from dray.train.run.waits import Patience, Wait
from dray.train.storage.manifest import Committed
from dray.train.worker.run_messages import CollectiveArrival, Prepared, Reported, Staged


def committed(report: int, **metrics: Any) -> Committed:
    return Committed(Path(f"c{report}"), report, 1, {}, {0: {"metrics": metrics}})


def numbers(checkpoints: list[Committed]) -> list[int]:
    return [c.report for c in checkpoints]


@given(st.data())
def test_reports_complete_in_order_with_every_ranks_metrics(data: st.DataObject) -> None:
    """Ranks report at their own pace; each file of a checkpoint is staged exactly once."""
    world = data.draw(st.integers(1, 4))
    total = data.draw(st.integers(1, 5))
    with_files = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    book = ReportTracker(world)
    next_report = [0] * world
    blocked: dict[int, int] = {}
    done: list[int] = []
    while len(done) < total:
        free = [r for r in range(world) if r not in blocked and next_report[r] < total]
        rank = data.draw(st.sampled_from(free))
        number = next_report[rank]
        files = ("shared", f"rank-{rank}") if with_files[number] else None
        book.reported(rank, Reported(number, {"metrics": {"rank": rank}}, files))
        next_report[rank] += 1
        if files:
            blocked[rank] = number
        for entry in book.to_stage():
            staged = [name for share in entry.shares.values() for name in share]
            assert sorted(staged) == sorted({"shared", *(f"rank-{r}" for r in range(world))})
            assert "shared" in entry.shares[0]
            for r, share in entry.shares.items():
                book.staged(r, Staged(entry.report, dict.fromkeys(share, (0, None))))
        for entry in book.complete():
            assert sorted(entry.told) == list(range(world))
            done.append(entry.report)
            blocked = {r: n for r, n in blocked.items() if n != entry.report}
    assert done == list(range(total))


def test_a_rank_that_ended_is_not_waited_for() -> None:
    book = ReportTracker(2)
    book.reported(0, Reported(0, {}, ("a",)))
    assert not list(book.to_stage())
    assert [(wait.missing, wait.waiting) for wait in book.waits()] == [((1,), (0,))]
    book.ended(1)
    assert [e.report for e in book.to_stage()] == [0]


def test_a_rank_that_alone_has_files_ready_is_asked_for_none() -> None:
    ready = Prepared("here", {"a": (1, None)})
    book = ReportTracker(2)
    book.reported(0, Reported(0, {}, ("a",), prepared=ready))
    assert not list(book.complete())
    book.reported(1, Reported(0, {}))
    book.failed(0)  # what it has brought is there
    assert not list(book.to_stage())
    (entry,) = book.complete()
    assert (entry.ready, entry.staged, entry.alone) == (ready, ready.files, True)
    book = ReportTracker(2)
    book.reported(0, Reported(0, {}, ("a",), prepared=ready))
    book.reported(1, Reported(0, {}, ("a", "b")))
    (entry,) = book.to_stage()
    assert (entry.ready, entry.shares) == (None, {0: ("a",), 1: ("b",)})


def test_who_is_waited_for_in_a_report() -> None:
    def told() -> list[str]:
        return [wait.text(40.0, "rank {}".format) for wait in book.waits()]

    book = ReportTracker(3)
    book.reported(2, Reported(0, {}, ("c",)), 10.0)
    assert told() == [
        "ranks 0 and 1 have not made report 0 for 30 s; rank 2 waits for them (rank 0; rank 1)"
    ]
    book.reported(0, Reported(0, {}, ("a",)), 15.0)
    assert told() == ["rank 1 has not made report 0 for 30 s; ranks 0 and 2 wait for it (rank 1)"]
    book.reported(1, Reported(0, {}), 20.0)
    assert list(book.to_stage())
    book.staged(0, Staged(0, {"a": (0, None)}))
    assert told() == [
        "rank 2 has not put the files of report 0 in place for 25 s; rank 0 waits for it (rank 2)"
    ]
    book.staged(2, Staged(0, {"c": (0, None)}))
    assert list(book.complete())
    assert told() == []


def test_a_wait_is_told_of_ever_more_rarely() -> None:
    patience = Patience(30.0)
    waits = [Wait("made report 1", (1,), (0,), 0.0)]
    told = []
    now = 0.0
    while now < 1000:
        told += [now for _ in patience.due(waits, now)]
        now += patience.next_s(waits, now)
    assert told == [30, 60, 120, 240, 480, 960]
    assert patience.due([], 2000.0) == []


def test_a_rank_far_behind_may_still_bring_a_checkpoint() -> None:
    book = ReportTracker(2)
    for number in range(MOST_OPEN + 5):
        book.reported(0, Reported(number, {}))
    assert list(book.complete())
    book.reported(1, Reported(0, {}))
    book.reported(1, Reported(1, {}, ("a",)))
    assert [e.report for e in book.to_stage()] == [1]
    book.staged(1, Staged(1, {"a": (0, None)}))
    assert [e.report for e in book.complete()] == [1]


def test_who_may_be_about_to_make_a_report_of_a_failed_rank() -> None:
    book = ReportTracker(4)
    for number, now in ((0, 0.0), (1, 50.0), (2, 100.0)):
        book.reported(0, Reported(number, {}), now)
    for number, now in ((0, 0.0), (1, 50.0)):
        book.reported(1, Reported(number, {}), now)
    book.reported(2, Reported(0, {}), 0.0)
    assert not book.is_behind(100, within_s=10)  # nobody has failed
    book.failed(0)
    assert book.is_behind(200, within_s=10)  # 1 lacks one report alone, whenever that was
    book.ended(1)
    assert not book.is_behind(200, within_s=10)  # 2 and 3 are slow, or do not report
    assert book.is_behind(55, within_s=10)  # 2 may still come to the one of 50.0
    book.failed(3)  # it has made none: there is nothing that every failed one has made
    assert not book.is_behind(55, within_s=10)


def test_a_rank_that_is_left_out_holds_nothing_up() -> None:
    book = ReportTracker(3)
    for rank in (0, 2):
        book.reported(rank, Reported(0, {}, files=("shared", f"of-{rank}")))
    book.failed(2)
    book.leave_out(2)  # its files are gone with it
    assert list(book.to_stage()) == []  # one that stays has not come yet
    book.reported(1, Reported(0, {}, files=("shared", "of-1")))
    (entry,) = book.to_stage()
    assert entry.shares == {0: ("shared", "of-0"), 1: ("of-1",)}
    for rank in (0, 1):
        book.staged(rank, Staged(0, {}))
    assert [e.trouble for e in book.complete()] == [None]

    book = ReportTracker(2)
    for rank in (0, 1):
        book.reported(rank, Reported(0, {}, files=(f"of-{rank}",)))
    assert len(list(book.to_stage())) == 1
    book.failed(1)
    book.leave_out(1)  # what it had to copy is lost: there is no checkpoint, and nobody waits
    assert list(book.complete()) == []
    book.staged(0, Staged(0, {}))
    assert [e.trouble for e in book.complete()] == [
        "rank 1: its node was taken away before it had copied its files"
    ]


def test_a_rank_far_ahead_is_not_waited_for() -> None:
    book = ReportTracker(2)
    for number in range(MOST_OPEN + 5):
        book.reported(0, Reported(number, {}))
    assert [e.report for e in book.complete()] == list(range(5))


def test_a_collective_is_over_once_all_ranks_have_come() -> None:
    book = CollectiveTracker(2)
    assert book.joined(1, CollectiveArrival(0, "barrier", (b"one",))) is None
    assert book.joined(0, CollectiveArrival(0, "barrier", (b"zero",))) == (b"zero", b"one")
    book.check({0})  # nobody waits
    book.check(set())


def test_a_collective_names_who_can_never_come() -> None:
    book = CollectiveTracker(5)
    for rank in (0, 2):
        book.joined(rank, CollectiveArrival(0, "barrier", ()))
    book.check({0, 1, 2, 3, 4})  # they may come yet
    with pytest.raises(
        TrainingFailedError,
        match=r"ranks 0 and 2 wait in barrier\(\) for ranks 1 and 4, whose functions have re",
    ):
        book.check({0, 2, 3})


def test_retention_without_a_score_keeps_the_newest() -> None:
    checkpoints = [committed(i) for i in range(5)]
    assert numbers(checkpoints_to_delete(checkpoints, CheckpointConfig(num_to_keep=2))) == [0, 1, 2]
    assert checkpoints_to_delete(checkpoints, CheckpointConfig()) == []


@given(st.lists(st.one_of(st.none(), st.floats()), min_size=1, max_size=8), st.integers(1, 5))
def test_retention_keeps_the_newest_and_the_best(scores: list[Any], keep: int) -> None:
    config = CheckpointConfig(num_to_keep=keep, checkpoint_score_attribute="s")
    checkpoints = [committed(i, s=score) for i, score in enumerate(scores)]
    gone = set(numbers(checkpoints_to_delete(checkpoints, config)))
    kept = [c for c in checkpoints if c.report not in gone]
    assert checkpoints[-1] in kept
    best = numbers(ranked(checkpoints, config))[-keep:]
    assert set(numbers(kept)) == {*best, checkpoints[-1].report}


def test_back_off_grows_to_a_limit() -> None:
    policy = FailurePolicy(max_failures=-1)
    delays = []
    for _ in range(9):
        assert policy.failed()
        delays.append(policy.back_off_s())
    assert delays == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    policy.progressed()
    assert policy.failed()
    assert policy.back_off_s() == 0
    assert not FailurePolicy(max_failures=0).failed()


def test_lost_nodes_have_a_count_of_their_own() -> None:
    policy = FailurePolicy(max_failures=0)
    assert policy.failed(lost_node=True)
    assert policy.count(lost_node=True) == "lost node 1, no limit"
    assert not policy.failed()
    once = FailurePolicy(max_failures=-1, max_preemption_failures=1)
    assert [once.failed(lost_node=True) for _ in range(2)] == [True, False]
    assert once.count(lost_node=True) == "lost node 2, 1 allowed"


def test_a_sudden_death_comes_before_its_consequences() -> None:
    log = FailureLog()
    log.add(0, RuntimeError("connection closed"))
    log.add(2, WorkerDiedError(-6))  # an abort may be a consequence too
    log.add(1, WorkerDiedError(-9))
    log.add(1, RuntimeError("a second failure of a rank does not count"))
    assert list(log.by_cause()) == [1, 0, 2]


def test_equal_consequences_are_folded() -> None:
    cause = ValueError("bad batch")
    cause.__cause__ = RemoteTraceback("Traceback...\nValueError: bad batch")
    failures = {3: cause, 0: RuntimeError("lost"), 1: RuntimeError("lost"), 2: OSError("other")}
    error = to_error(failures, Path("log"), Path("run"), 1)
    assert isinstance(error, ValueError)
    lines = str(error).splitlines()
    assert lines[0] == "rank 3 failed: ValueError: bad batch"
    assert "ranks 0 and 1 failed after that: RuntimeError: lost" in lines
    assert "rank 2 failed after that: OSError: other" in lines
    assert "log of rank 3: log" in lines
    assert lines[-1].startswith("the run is in run; it has no checkpoint to resume from; ")
    kept = to_error(failures, None, Path("runs/digits"), 1, checkpoint=Path("checkpoint_000003"))
    resuming = "the run is in runs/digits; RunConfig(name='digits') resumes from checkpoint_000003;"
    assert str(kept).splitlines()[-1].startswith(resuming)


@pytest.mark.parametrize(
    ("error", "told"),
    [(bdb.BdbQuit(), True), (EOFError("EOF when reading a line"), True), (EOFError(), False)],
)
def test_a_worker_that_asks_for_a_terminal_is_told_where_there_is_one(
    error: Exception, told: bool
) -> None:
    advice = "workers have no terminal: ScalingConfig(num_workers=0) runs the function in this"
    assert advice not in str(to_error({0: error}, None, Path("run"), 1))  # with no workers at all
    error.__cause__ = RemoteTraceback("Traceback...")
    assert (advice in str(to_error({0: error}, None, Path("run"), 1))) is told


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("bad"),
        InfeasibleError("too much", asked={"CPU": 9}, available={"CPU": 2}),
        MissingDependencyError("torch", "torch"),
        NotInTrainingError("report"),
        StorageError("full"),
        WorkerDiedError(-9, out_of_memory=True),
    ],
)
def test_every_error_survives_pickling_with_its_data(error: DrayError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert {k: repr(v) for k, v in vars(again).items()} == {
        k: repr(v) for k, v in vars(error).items()
    }


def test_an_error_of_the_driver_survives_pickling() -> None:
    error = to_driver_error(StorageError(28, "No space left on device"))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ControllerError)
    assert isinstance(again, StorageError)
    assert again.errno == 28
    assert str(again) == str(error)
    assert "StorageError: [Errno 28] No space left on device" in str(error)


def test_what_fit_promises_to_raise_is_not_wrapped() -> None:
    for error in (ConfigError("bad"), InfeasibleError("too much", asked={}, available={})):
        assert to_driver_error(error) is error


class ForbidsSubclasses(Exception):
    def __init_subclass__(cls) -> None:
        raise RuntimeError("no")


def test_an_error_that_cannot_be_mixed_is_told_all_the_same() -> None:
    error = to_driver_error(ForbidsSubclasses("why"))
    assert type(error) is ControllerError
    assert "ForbidsSubclasses: why" in str(error)


def test_a_workers_error_survives_pickling() -> None:
    error = to_error({1: KeyError("k")}, None, Path("run"), 1)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, WorkerGroupError)
    assert isinstance(again, KeyError)
    assert str(again) == str(error)
    assert list(again.worker_failures) == [1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups of exceptions")
@pytest.mark.parametrize("to", [lambda e: to_error({1: e}, None, Path("run"), 1), to_driver_error])
def test_a_group_of_errors_is_caught_as_one(to: Callable[[Exception], TrainingFailedError]) -> None:
    group: Any = builtins.ExceptionGroup  # type: ignore[attr-defined,unused-ignore]
    error = to(group("both", [ValueError("a"), KeyError("b")]))
    again: Any = pickle.loads(pickle.dumps(error))
    assert type(again).__mro__[1] is type(error).__mro__[1]
    assert str(again) == again.message == str(error)
    assert "both" in str(error)
    values, _ = again.split(ValueError)
    assert repr(values.exceptions) == "(ValueError('a'),)"


def test_an_error_class_that_forbids_subclasses_is_still_the_cause() -> None:
    class Sealed(Exception):
        def __init_subclass__(cls) -> None:
            raise TypeError("sealed")

    error = to_error({0: Sealed("x")}, None, Path("run"), 1)
    assert type(error) is WorkerGroupError
    assert isinstance(error.worker_failures[0], Sealed)


def test_repeated_lines_are_folded() -> None:
    folder = LineDeduplicator(window_s=5)
    first = [s for rank in range(3) for s in folder.feed(rank, "stderr", "warning", rank / 10)]
    assert first == [Shown(0, "stderr", "warning")]
    later = list(folder.feed(0, "stdout", "next", 6))
    assert later == [
        Shown(1, "stderr", "warning", repeated=2, ranks=(1, 2)),
        Shown(0, "stdout", "next"),
    ]
    assert later[0].line == "(rank 1) warning [repeated 2x across ranks 1 and 2]"
    assert list(folder.feed(1, "stdout", "", 6)) == [Shown(1, "stdout", "")]
    assert list(folder.flush()) == []


def test_repetitions_are_due_when_the_window_of_their_line_ends() -> None:
    folder = LineDeduplicator(window_s=5)
    fed = [(0, "alone", 0), (0, "a", 1), (0, "b", 2), (1, "b", 3), (1, "a", 3)]
    due = [(list(folder.feed(rank, "stdout", text, now)), folder.due)[1] for rank, text, now in fed]
    assert due == [math.inf, math.inf, math.inf, 7, 6]
    assert [shown.line for shown in folder.expire(6)] == ["(rank 1) a [repeated 1x]"]
    assert folder.due == 7
    assert [shown.line for shown in folder.expire(7)] == ["(rank 1) b [repeated 1x]"]
    assert folder.due == math.inf


def test_a_line_says_how_often_it_came_in_plain_words() -> None:
    assert Shown(1, "stdout", "hello").line == "(rank 1) hello"
    assert Shown(1, "stdout", "hello", 1, (1,)).line == "(rank 1) hello [repeated 1x]"
    assert Shown(0, "stdout", "hello", 2, (0,)).line == "(rank 0) hello [repeated 2x]"
    assert describe_ranks([1, 2, 3]) == "ranks 1-3"
    assert describe_ranks([0, 2, 5, 6, 7]) == "ranks 0, 2 and 5-7"


def test_nothing_is_folded_without_a_window() -> None:
    folder = LineDeduplicator(window_s=0)
    for rank in (0, 1, 0):
        assert list(folder.feed(rank, "stdout", "same", 1)) == [Shown(rank, "stdout", "same")]
    assert list(folder.flush()) == []


@pytest.mark.parametrize("exitcode", [None, 0, 5, -9, -6, -7, -11, -64, -200])
def test_every_end_of_a_process_is_described(exitcode: int | None) -> None:
    assert "its process" in str(WorkerDiedError(exitcode))
