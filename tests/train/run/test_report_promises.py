"""The controller alone, in a world that is made up: what it promises about reports, in any order.

Ranks are drawn: what each of them reports, how each ends, and who does something next. Time passes
only when nothing else is chosen, so no example depends on how fast this machine is.
"""

from __future__ import annotations

import contextlib
import json
import queue
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import event, given, settings
from hypothesis import strategies as st

from dray.engines.base import Actor, ActorSpec, Died, Posted, Started
from dray.errors import RemoteTraceback, WorkerDiedError
from dray.scheduling.requests import Node
from dray.settings import Settings
from dray.train.backend import Backend, BackendConfig
from dray.train.config import RunConfig
from dray.train.run.controller import Controller
from dray.train.run.events import Interrupt
from dray.train.run.failure import Outcome
from dray.train.run.output.progress import Progress
from dray.train.run.output.screens import Screen
from dray.train.run.state import State
from dray.train.scaling import ScalingConfig
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import run_messages
from dray.train.worker.train_worker import Ended


@dataclass
class Script:
    """What one rank does, if it gets so far: its reports, whether with files, and its end.

    Attributes:
        defers: Whether it secures its files after their commit.
    """

    brings: list[bool]
    end: str
    defers: bool = False


class Rank(Actor):
    """A rank that exists in the test alone."""

    pid = 1

    def __init__(self, world: World, number: int, script: Script) -> None:
        self.world, self.number, self.script = world, number, script
        self.made = 0
        self.waits = False
        self.noticed = False
        self.share: run_messages.Share | None = None
        self.to_secure: dict[int, tuple[str, ...]] = {}
        self.provisional: int | None = None
        self.asked = False
        self.asked_after = 0
        self.stop_at: int | None = None
        self.inbox: list[Any] = []  # what the controller has said, and is still on its way
        self.job: Future[Any] = Future()
        self.ended = ""
        self.killed = False
        self.stops = False
        self.dead = False

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        if method == "run":
            return self.job
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def signal(self, method: str, /, *args: Any) -> None:
        self.inbox += args

    def stop(self) -> None:
        self.stops = True

    def kill(self) -> None:
        if not self.killed:
            self.world.look_at_kill()
        self.killed = True

    # What it may do next.

    def moves(self) -> dict[str, Callable[[], None]]:
        if self.dead:
            return {}
        if self.killed or self.stops:
            return {"gone": lambda: self.die(WorkerDiedError(-9), expected=True)}
        found = {"dies": lambda: self.die(WorkerDiedError(-9), expected=False)}
        if self.ended:
            return found
        if self.inbox:
            found["hears"] = self.hear
        if self.provisional is not None:
            found["secures"] = self.secure
        if self.share is not None:
            found["stages"] = self.stage
        elif self.waits or self.holds:
            pass
        elif self.made < len(self.script.brings):
            if self.provisional is None or not self.script.brings[self.made]:
                found["reports"] = self.report
        elif self.script.end != "hangs" and (
            self.provisional is None or self.script.end == "raises"
        ):
            found[self.script.end] = self.finish
        return found

    def hear(self) -> None:
        message = self.inbox.pop(0)
        if isinstance(message, run_messages.StopAsked):
            self.asked = True
            self.asked_after = self.made
            self.post(run_messages.NextReport(self.made))
        elif isinstance(message, run_messages.StopRequested):
            self.stop_at = message.report
            self.look_whether_to_stop()
        elif isinstance(message, run_messages.Share):
            self.share = message
        elif isinstance(message, run_messages.ReportDone):
            if message.provisional and message.report in self.to_secure:
                self.provisional = message.report
            if message.report == self.made - 1:
                self.waits = False
                self.look_whether_to_stop()
        elif isinstance(message, run_messages.GivenUp):
            self.end_stopped()

    @property
    def holds(self) -> bool:
        """Whether it has made a report since it was asked to stop, and has not heard where."""
        return self.asked and self.stop_at is None and self.made > self.asked_after

    def look_whether_to_stop(self) -> None:
        if self.stop_at is not None and self.made > self.stop_at and not self.waits:
            assert self.made == self.stop_at + 1  # all ranks stop at the same one
            if not self.ended:
                self.end_stopped()

    def end_stopped(self) -> None:
        self.waits = False
        self.ended = "stops"
        self.job.set_result(Ended(stopped=True))

    def report(self) -> None:
        brings = self.script.brings[self.made]
        files = ("shared", f"of-{self.number}") if brings else None
        self.waits = told = brings or self.world.barrier
        metrics = {"of": self.number, "made": self.made}
        members = b'"metrics":%b' % json.dumps(metrics).encode()
        line = run_messages.line_of(self.made, 0, 0.0, members)
        if told or not self.world.one_host:
            self.write(line[:-1] + run_messages.TOLD + b"}")
            self.post(run_messages.Reported(self.made, {"metrics": metrics}, files))
        else:
            self.write(line)
            if not self.noticed:
                self.noticed = True
                self.post(run_messages.NOTICE)
        self.made += 1
        self.look_whether_to_stop()

    def write(self, line: bytes) -> None:
        if self.world.one_host:
            with contextlib.closing(self.world.directory.metrics(self.number, 0)) as file:
                file.append_text(line)

    def stage(self) -> None:
        share, self.share = self.share, None
        assert share is not None
        for name in share.files:
            Path(share.staging, name).touch()
        due = self.script.defers and bool(share.files)
        if due:
            self.to_secure[share.report] = share.files
        files: dict[str, Fingerprint] = dict.fromkeys(share.files, (0, None))
        self.post(run_messages.Staged(share.report, files, is_due=due))
        self.world.staged.add((self.number, share.report))

    def secure(self) -> None:
        assert self.provisional is not None
        known: Fingerprint = (0, "xxh3_64:2d06800538d394c2")
        files = dict.fromkeys(self.to_secure[self.provisional], known)
        self.post(run_messages.Secured(self.provisional, files))
        self.provisional = None

    def finish(self) -> None:
        self.ended = self.script.end
        if self.ended == "returns":
            self.job.set_result(Ended())
        else:
            error = RuntimeError("its own")
            error.__cause__ = RemoteTraceback("where")
            self.world.fails(self)
            self.job.set_exception(error)

    def die(self, error: WorkerDiedError, *, expected: bool) -> None:
        self.dead = True
        if not expected:
            self.world.dies(self)
        self.world.put(Died(self, error, expected))

    def post(self, message: Any) -> None:
        self.world.put(Posted(self, message))


@dataclass
class World(queue.SimpleQueue):  # type: ignore[type-arg]
    """The controller's mailbox and engine: decides what happens next when it is asked.

    Attributes:
        scripts: What the ranks do.
        barrier: As `RunConfig.report_barrier`.
        one_host: Whether ranks leave reports without files in their files of metrics.
        choose: Draws one of several.
    """

    scripts: list[Script]
    barrier: bool
    choose: Callable[[list[str]], str]
    one_host: bool = False
    ranks: list[Rank] = field(default_factory=list)
    staged: set[tuple[int, int]] = field(default_factory=set)
    failed: list[Rank] = field(default_factory=list)
    timers: list[Callable[[], None]] = field(default_factory=list)
    deaths: int = 0
    shut: bool = False
    impatient: bool = False  # time has passed, or the user has pressed Ctrl-C
    now: float = 0.0  # by the clock of notices, in seconds
    name = "made up"
    distributed = True
    shows_output = True
    env_vars = ()
    broken = False
    directory: RunDirectory = field(init=False)

    def __post_init__(self) -> None:
        self._events: list[Any] = []

    # As a mailbox.

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        self._events.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._events:
            if timeout == 0:
                raise queue.Empty
            self.go_on(notices=timeout is not None)
        return self._events.pop(0)

    def go_on(self, *, notices: bool) -> None:
        """Let one thing happen, perhaps the end of the time for which ranks give no notice."""
        moves: dict[str, Callable[[], object]] = {
            f"{what} {rank.number}": move
            for rank in self.ranks
            for what, move in rank.moves().items()
        }
        if self.timers:
            moves["time passes"] = self.timers.pop
        else:
            moves["Ctrl-C"] = lambda: self.put(Interrupt("Ctrl-C"))
        moves["shutdown"] = self.shut_down
        if notices:
            moves["looks"] = self.end_notices
        # What ends ranks or patience is rarer than what they do.
        rare = [n for n in moves if n.split()[0] in ("dies", "Ctrl-C", "time", "shutdown")]
        often = [name for name in moves if name not in rare]
        name = self.choose(often * 6 + rare)
        if name in ("Ctrl-C", "time passes", "shutdown"):
            self.impatient = True
        result: Any = moves[name]()
        if callable(result):
            result()

    def end_notices(self) -> None:
        self.now += 1
        for rank in self.ranks:
            rank.noticed = False
        raise queue.Empty

    def shut_down(self) -> None:
        """End the session in another thread."""
        self.shut = True
        for rank in self.ranks:
            if not rank.dead:
                rank.die(WorkerDiedError(-9), expected=True)

    # As an engine.

    def nodes(self) -> list[Node]:
        return [Node("here", "127.0.0.1", {})]

    def reserve(self, request: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self)
        return future

    def release(self) -> None:
        pass

    def until_closed(self) -> Future[None]:
        return Future()

    def watch_leaving(self, tell: Callable[[], object]) -> Callable[[], None]:
        return lambda: None

    def start_actor(self, spec: ActorSpec) -> Rank:
        rank = Rank(self, len(self.ranks), self.scripts[len(self.ranks)])
        self.ranks.append(rank)
        self.put(Started(rank, "here", "127.0.0.1"))
        return rank

    # What is promised.

    def fails(self, rank: Rank) -> None:
        self.failed.append(rank)

    def dies(self, rank: Rank) -> None:
        self.deaths += 1
        if not rank.ended:
            rank.ended = "dies"
            self.fails(rank)

    def made_by_all(self, report: int) -> bool:
        """Whether every rank has made it that has not returned before."""
        return all(rank.made > report or rank.ended == "returns" for rank in self.ranks)

    def brought(self, report: int) -> list[Rank]:
        return [rank for rank in self.ranks if rank.made > report and rank.script.brings[report]]

    def metrics_of(self, report: int) -> dict[int, dict[str, object]]:
        """What each rank that has made a report has said in it."""
        made = [rank.number for rank in self.ranks if rank.made > report]
        return {number: {"metrics": {"of": number, "made": report}} for number in made}

    def to_be_had(self, report: int) -> bool:
        """Whether its files can be put together: no rank has failed before it gave its own."""
        return all(
            (rank.number, report) in self.staged or rank not in self.failed
            for rank in self.brought(report)
        )

    def look_at_kill(self) -> None:
        """Ranks are killed: because of a failure, only when nothing is to be had any more."""
        if not self.failed or self.impatient:
            return
        last = min(rank.made for rank in self.failed)
        behind = [r.number for r in self.ranks if not r.ended and not r.dead and r.made < last]
        assert not behind, f"ranks {behind} had not made report {last - 1}"


class Timer:
    """Time that passes when the world says so."""

    world: World

    def __init__(self, seconds: float, function: Callable[..., None], args: Iterable[Any]) -> None:
        self._ring = lambda: function(*args)

    def start(self) -> None:
        self.world.timers.append(self._ring)

    def cancel(self) -> None:
        if self._ring in self.world.timers:
            self.world.timers.remove(self._ring)


def run(world: World, path: Path) -> tuple[Outcome, RunDirectory]:
    Timer.world = world
    directory = world.directory = RunDirectory(path)
    directory.storage.open()
    clock = mock.Mock(monotonic=lambda: world.now)
    with (
        mock.patch("dray.train.run.events.threading.Timer", Timer),
        mock.patch("dray.train.run.report_files.time", clock),
        mock.patch("dray.train.run.output.progress.time", clock),
    ):
        controller = Controller(
            world,  # type: ignore[arg-type]
            directory,
            ScalingConfig(num_workers=len(world.scripts)),
            RunConfig(name="run", storage_path=path.parent, report_barrier=world.barrier),
            (Backend(), BackendConfig()),
            b"",
            Progress("run", path, Screen()),
            Settings(),
            world,
        )
        outcome = controller.run()
    directory.storage.close()
    return outcome, directory


scripts = st.builds(
    Script,
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.sampled_from(["raises", "raises", "returns", "hangs"]),
    st.booleans(),
)


@settings(max_examples=100)
@given(st.lists(scripts, min_size=2, max_size=3), st.booleans(), st.booleans(), st.data())
def test_what_every_rank_has_reported_is_kept(
    drawn: list[Script], barrier: bool, one_host: bool, data: st.DataObject
) -> None:
    world = World(drawn, barrier, lambda names: data.draw(st.sampled_from(names)), one_host)
    with tempfile.TemporaryDirectory() as storage:
        outcome, directory = run(world, Path(storage, "run"))
        found = directory.checkpoints()
        kept = [committed.report for committed in found]
        assert not any(committed.is_provisional for committed in found)
        assert all(committed.first_damaged_file() is None for committed in found)
        told = [line["state"] for line in directory.events() if line["event"] == "state"]
    for committed in found:
        assert committed.metrics == world.metrics_of(committed.report)
    event(f"ended {outcome.state.value}")
    event("drained" if "DRAINING" in told else "went straight")
    assert kept == sorted(kept)
    for report in range(3):
        if not world.brought(report):
            assert report not in kept  # no rank has brought anything
        elif report in kept:
            assert world.made_by_all(report), report  # not by those alone that had not stopped
        elif "ABORTED" not in told and not world.shut:
            assert not (world.made_by_all(report) and world.to_be_had(report)), report
    if outcome.state is State.FINISHED:
        assert outcome.error is None
    if outcome.state is State.ERRORED:
        assert world.failed or world.deaths or world.shut
        assert outcome.error is not None
        if "STOPPING" not in told:
            assert ("shutdown" in str(outcome.error)) == (not world.failed and not world.deaths)


def in_order(*wanted: str) -> Callable[[list[str]], str]:
    """Return what chooses these things, one after the other."""
    left = list(wanted)

    def choose(names: list[str]) -> str:
        assert left, f"nothing more was to happen, but {sorted(set(names))} can"
        assert left[0] in names, f"{left[0]} cannot happen, but {sorted(set(names))}"
        return left.pop(0)

    return choose


def test_ranks_stop_at_the_next_report_of_who_is_ahead_though_it_has_not_heard_yet(
    tmp_path: Path,
) -> None:
    scripts = [Script([False, True, False], "hangs"), Script([False, True, False], "hangs")]
    order = (
        *("Ctrl-C", "reports 0", "reports 0"),  # rank 0 is ahead, and waits for rank 1
        *("hears 1", "reports 1", "hears 0", "hears 1", "reports 1"),
        *("hears 0", "hears 0", "stages 0", "hears 1", "stages 1", "hears 0", "hears 1"),
        *("reports 0", "reports 1", "gone 0", "gone 1"),
    )
    outcome, directory = run(World(scripts, False, in_order(*order)), tmp_path / "run")
    assert outcome.state is State.ABORTED
    assert [committed.report for committed in directory.checkpoints()] == [1]


def test_a_report_that_is_read_as_the_grace_ends_begins_it_anew(tmp_path: Path) -> None:
    order = (
        *("reports 0", "Ctrl-C", "reports 0", "time passes"),  # the second one without a notice
        *("hears 0", "hears 0", "reports 0", "gone 0"),
    )
    world = World([Script([False] * 3, "hangs")], False, in_order(*order), one_host=True)
    outcome, _ = run(world, tmp_path / "run")
    assert outcome.state is State.ABORTED
    assert world.ranks[0].made == 3


def test_a_checkpoint_has_the_metrics_of_a_rank_that_is_ahead(tmp_path: Path) -> None:
    order = (
        *("reports 0", "reports 0", "reports 0", "reports 1", "reports 1"),  # two are read at once
        *("hears 1", "stages 1", "hears 1", "hears 0"),
        *("returns 0", "returns 1", "gone 0", "gone 1"),
    )
    scripts = [Script([False] * 3, "returns"), Script([False, True], "returns")]
    world = World(scripts, False, in_order(*order), one_host=True)
    (committed,) = run(world, tmp_path / "run")[1].checkpoints()
    assert committed.metrics == world.metrics_of(1)
    assert committed.metrics.keys() == {0, 1}
