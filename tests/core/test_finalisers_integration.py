"""A program's code where nobody expects it: finalisers, callbacks, the end of the stack."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import dray
from dray.errors import EngineError
from tests.support.gates import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("process_engine")


class Log:
    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1

    def total(self) -> int:
        return self.count


def new_log(**options: Any) -> Any:
    return (dray.remote(**options)(Log) if options else dray.remote(Log)).remote()


@dray.remote
def same(value: Any) -> Any:
    return value


class Ring:
    """Garbage that only the collector finds.

    Args:
        at_end: What its finaliser calls.
    """

    def __init__(self, at_end: Callable[[], object]) -> None:
        self.at_end = at_end
        self.itself = self

    def __del__(self) -> None:
        self.at_end()


@contextmanager
def collecting_all_the_time() -> Iterator[None]:
    """Have the collector run at nearly every step."""
    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.collect()


def leave_rings(at_end: Callable[[], object], count: int = 400) -> None:
    """Leave garbage while objects, tasks and their values come and go."""
    with collecting_all_the_time():
        for number in range(count):
            Ring(at_end)
            ref = same.remote(number) if number % 10 == 0 else dray.put([number])
            if number % 5 == 0:
                dray.get(ref)


def test_a_finaliser_reads_a_large_object_as_the_first_one_is_mapped() -> None:
    dray.shutdown()
    dray.init(num_cpus=1)
    ref: dray.ObjectRef = dray.put(np.ones(1 << 20, np.uint8))
    read: list[Any] = []

    def collect(frame: object, event: str, called: object) -> None:
        if called is ctypes.addressof and not read:
            Ring(lambda: read.append(dray.get(ref)))
            gc.collect(0)

    sys.setprofile(collect)
    try:
        value = dray.get(ref)
    finally:
        sys.setprofile(None)
    assert value.all()
    assert read[0].all()


def test_finalisers_that_call_an_actor_in_the_midst_of_dray() -> None:
    log = new_log()
    leave_rings(lambda: log.note.remote())
    assert dray.get(log.total.remote()) == 400


def test_finalisers_that_call_an_actor_within_a_task() -> None:
    log = new_log()

    @dray.remote
    def rings(log: Any) -> None:
        leave_rings(lambda: log.note.remote(), 200)

    dray.get(rings.remote(log))
    assert dray.get(log.total.remote()) == 200


def test_finalisers_that_store_and_hand_on() -> None:
    kept: list[Any] = []
    leave_rings(lambda: kept.append(same.remote(dray.put("a value"))))
    assert dray.get(kept) == ["a value"] * 400


def test_finalisers_that_kill_and_cancel() -> None:
    actors = [new_log(num_cpus=0) for _ in range(3)]
    dray.get([actor.total.remote() for actor in actors])
    left = iter(actors)

    def at_end() -> None:
        dray.cancel(same.remote(1))
        for actor in left:
            dray.kill(actor)

    leave_rings(at_end, 100)
    for actor in actors:
        with pytest.raises(dray.exceptions.ActorDiedError):
            dray.get(actor.total.remote())


def test_finalisers_that_wait_have_the_value_or_are_refused() -> None:
    ref = dray.put("a value")
    ended: list[str] = []

    def at_end() -> None:
        try:
            ended.append(dray.get(ref))
        except EngineError as error:
            ended.append("refused" if "finaliser" in str(error) else repr(error))

    leave_rings(at_end)
    assert len(ended) == 400
    assert set(ended) <= {"a value", "refused"}


def wait_within_a_callback() -> list[Any]:
    """Return what a future's callback has got, and what this thread has got meanwhile."""
    seen: list[Any] = []
    done = threading.Event()

    def callback(future: Any) -> None:
        seen.append((future.result(), dray.get(same.remote("within"))))
        done.set()

    same.remote("first").future().add_done_callback(callback)
    meanwhile = dray.get([same.remote(number) for number in range(20)])
    assert done.wait(PATIENCE_S)
    return [*seen, meanwhile]


def test_a_futures_callback_may_wait() -> None:
    assert wait_within_a_callback() == [("first", "within"), list(range(20))]


def test_a_futures_callback_within_a_task_may_wait() -> None:
    ref = dray.remote(wait_within_a_callback).remote()
    assert dray.get(ref, timeout=PATIENCE_S) == [("first", "within"), list(range(20))]


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_the_end_of_the_stack_breaks_nothing(extra: int) -> None:
    log = new_log()
    kept = [dray.put(0)]

    def to_the_end(call: Callable[[int], object], depth: int = 0) -> None:
        call(depth)
        to_the_end(call, depth + 1)

    def from_another_depth(call: Callable[[int], object], frames: int) -> None:
        if frames:
            from_another_depth(call, frames - 1)
        else:
            to_the_end(call)

    for call in (
        lambda depth: kept.append(same.remote(depth)),
        lambda depth: kept.append(same.options(num_cpus=1 + depth % 3).remote(depth)),
        lambda depth: kept.append(dray.put(depth)),
        lambda depth: kept.append(log.total.remote()),
        lambda depth: dray.get(kept[0]),
    ):
        with pytest.raises(RecursionError):
            from_another_depth(call, extra)
    assert len(dray.get(kept)) == len(kept)
    assert dray.get(log.total.remote()) == 0


class Leaves:
    """Leaves files as it ends."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __ray_shutdown__(self) -> None:
        (self.directory / "shut down").touch()

    def __del__(self) -> None:
        (self.directory / "gone").touch()

    def ready(self) -> None:
        pass


@pytest.mark.parametrize("end", ["handle", "terminate", "kill"])
def test_an_actor_that_ends_well_is_told(tmp_path: Path, end: str) -> None:
    leaves = dray.remote(Leaves).remote(tmp_path)
    dray.get(leaves.ready.remote())
    pid = dray.get(leaves.__ray_call__.remote(lambda self: os.getpid()))
    if end == "terminate":
        leaves.__ray_terminate__.remote()
    elif end == "kill":
        dray.kill(leaves)
    del leaves
    until(lambda: not psutil.pid_exists(pid))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ([] if end == "kill" else ["gone", "shut down"])
