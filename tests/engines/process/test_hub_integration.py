"""The hub where processes end, are cancelled or cannot be started: nobody waits for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray
import dray.testing
from dray import session
from dray.engines.process.hub.driver import DriverRuntime
from dray.engines.process.hub.hub import Hub
from dray.engines.rpc.framing import Frame, Inbox
from dray.errors import (
    ActorUnavailableError,
    EngineError,
    GroupRemovedError,
    TaskCancelledError,
    TaskError,
)
from dray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.gates import PATIENCE_S, Gate, until

pytestmark = pytest.mark.usefixtures("session")


def runtime() -> DriverRuntime:
    found = session.current_runtime()
    assert isinstance(found, DriverRuntime)
    return found


def test_a_result_counts_though_its_process_ends_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    received, on_exit = Inbox.receive_raw, DriverRuntime._on_exit
    ended = threading.Event()

    def tell(self: DriverRuntime, *arguments: Any) -> None:
        on_exit(self, *arguments)
        ended.set()

    def late(self: Inbox, flags: int = 0) -> list[Frame] | None:
        frames = received(self, flags)
        if any(b"done" in bytes(frame) for frame in frames or ()):
            gate.open()
            assert ended.wait(PATIENCE_S)  # the thread that reads is held up here
        return frames

    @dray.remote(max_retries=0)
    def last_words() -> str:
        threading.Thread(target=lambda: (gate.wait(), os._exit(1))).start()
        return "a result"

    monkeypatch.setattr(DriverRuntime, "_on_exit", tell)
    dray.init(num_cpus=1, log_to_driver=False)
    monkeypatch.setattr(Inbox, "receive_raw", late)
    assert dray.get(last_words.remote()) == "a result"


def test_all_of_many_calls_are_cancelled(tmp_path: Path) -> None:
    @dray.remote(num_cpus=0, max_concurrency=1000)
    class Waiter:
        async def wait(self) -> None:
            await asyncio.sleep(1000)

        async def answer(self) -> int:
            return 1

    @dray.remote(num_cpus=0)
    def calls(waiter: Any, gate: Gate) -> None:
        refs = [waiter.wait.remote() for _ in range(900)]
        dray.get(waiter.answer.remote())
        gate.pass_through()
        dray.get(refs)

    dray.init(num_cpus=1, log_to_driver=False)
    waiter, gate = Waiter.remote(), Gate(tmp_path)
    task = calls.remote(waiter, gate)
    gate.heard()
    dray.cancel(task, recursive=True)
    gate.open()
    until(lambda: sum(it.calls_running for it in runtime().status().actors) == 0)


def test_a_worker_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    @dray.remote
    def task() -> int:
        return 1

    @dray.remote
    class Actor:
        pass

    (tmp_path / "work").mkdir()
    dray.init(num_cpus=1, runtime_env={"working_dir": str(tmp_path / "work")})
    (tmp_path / "work").rmdir()
    with pytest.raises(EngineError, match=r"task has no worker process.*not a directory"):
        dray.get(task.remote())
    with pytest.raises(EngineError, match=r"has no worker process.*not a directory"):
        Actor.remote()
    assert dray.available_resources()["CPU"] == 1
    (tmp_path / "work").mkdir()
    assert dray.get(task.remote()) == 1


def test_what_was_asked_for_and_is_not_wanted_any_more_holds_up_nobody() -> None:
    @dray.remote(num_cpus=1)
    class Holder:
        def answer(self) -> int:
            return 1

    @dray.remote(num_cpus=2)
    def large() -> None:
        pass

    dray.init(num_cpus=2)
    holder = Holder.remote()
    dray.get(holder.answer.remote())
    waiting = Holder.options(num_cpus=2).remote()
    refs = [large.remote() for _ in range(3)]
    until(lambda: len(runtime().status().waiting) == 2)
    dray.kill(waiting)
    for ref in reversed(refs):
        dray.cancel(ref)
    assert not runtime().status().waiting


def test_a_group_moves_whose_node_dies_as_it_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    dray.init(nodes=[{"node_id": name, "num_cpus": 1} for name in "ab"], log_to_driver=False)
    when_granted, late = Hub.when_granted, []
    monkeypatch.setattr(Hub, "when_granted", lambda *call: late.append(call))
    group = placement_group([{"CPU": 1}])
    monkeypatch.undo()
    (hub, asked, then) = late[0]
    (node,) = asked.result().nodes
    dray.testing.kill_node(node.node_id)
    when_granted(hub, asked, then)
    assert group.wait(PATIENCE_S)
    (other,) = {"a", "b"} - {node.node_id}
    assert placement_group_table(group)["bundles_to_node_id"] == {0: other}
    within = PlacementGroupSchedulingStrategy(group)
    node_id = dray.remote(lambda: dray.get_runtime_context().get_node_id())
    task = node_id.options(num_cpus=1, scheduling_strategy=within)
    assert dray.get(task.remote(), timeout=PATIENCE_S) == other


def test_processes_of_many_environments_do_not_stay() -> None:
    @dray.remote
    def trial() -> int:
        return int(os.environ["TRIAL"])

    dray.init(num_cpus=1)
    most = runtime().pool._most_idle
    for number in range(most + 4):
        variables = {"env_vars": {"TRIAL": str(number)}}
        assert dray.get(trial.options(runtime_env=variables).remote()) == number
    until(lambda: len(runtime().pool.all) <= most)
    assert len(runtime().tasks.kinds.shapes) <= most + 4
    del trial
    until(lambda: not runtime().tasks.kinds.shapes)


def test_functions_that_differ_in_their_data_alone_are_several() -> None:
    def total_of(array: np.ndarray) -> Any:
        @dray.remote
        def total() -> float:
            return float(array.sum())

        return total

    dray.init(num_cpus=1)
    functions = [total_of(np.full(10, value)) for value in range(3)]
    assert dray.get([function.remote() for function in functions]) == [0, 10, 20]


@pytest.mark.parametrize("way", ["raises", "cancelled"])
def test_a_long_chain_ends_with_its_first_link(way: str, tmp_path: Path) -> None:
    @dray.remote(max_retries=0)
    def first(gate: Gate) -> int:
        gate.pass_through()
        raise ValueError("the first one")

    @dray.remote
    def step(value: int) -> int:
        return value

    dray.init(num_cpus=1, log_to_driver=False)
    gate = Gate(tmp_path)
    begun = first.remote(gate)
    last = begun
    for _ in range(1000):
        last = step.remote(last)
    gate.heard()
    if way == "cancelled":
        dray.cancel(begun)
    gate.open()
    with pytest.raises(ValueError if way == "raises" else TaskCancelledError):
        dray.get(last)
    assert dray.get(step.remote(1)) == 1


def test_an_iterators_end_in_a_task_is_an_error_for_who_waits() -> None:
    @dray.remote
    def first_of(values: list[int]) -> int:
        return next(iter(values))

    async def wait() -> object:
        return await first_of.remote([])

    dray.init(num_cpus=1)
    with pytest.raises(TaskError, match="StopIteration"):
        asyncio.run(wait())
    with pytest.raises(TaskError, match="StopIteration"):
        list(map(dray.get, [first_of.remote([1]), first_of.remote([])]))


def test_who_is_about_to_be_killed_gets_no_more_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @dray.remote(max_retries=0)
    def passes(gate: Gate) -> None:
        gate.pass_through()

    dray.init(num_cpus=1, log_to_driver=False)
    group = placement_group([{"CPU": 1}])
    gate = Gate(tmp_path)
    inside = PlacementGroupSchedulingStrategy(group)
    ref = passes.options(scheduling_strategy=inside).remote(gate)
    (pid,) = map(int, gate.heard())
    killed: list[Any] = []
    monkeypatch.setattr(runtime().tasks, "stop", killed.append)  # which takes a moment
    remove_placement_group(group)
    gate.open()
    with pytest.raises(GroupRemovedError):
        dray.get(ref)
    assert dray.get(process_id.remote()) != pid
    assert [worker.pid for worker in killed] == [pid]
    os.kill(pid, signal.SIGKILL)


@dray.remote(num_cpus=0)
def process_id() -> int:
    return os.getpid()


def test_an_actor_without_handles_that_dies_amid_its_calls_ends(tmp_path: Path) -> None:
    @dray.remote(num_cpus=0, max_restarts=1)
    class Fragile:
        def pid(self) -> int:
            return os.getpid()

        def work(self, gate: Gate) -> int:
            gate.pass_through()
            return 1

    dray.init(num_cpus=1, log_to_driver=False)
    gate, actor = Gate(tmp_path), Fragile.remote()
    pid = dray.get(actor.pid.remote())
    lost = actor.work.remote(gate)
    tried_again = actor.work.options(max_task_retries=1).remote(gate)
    gate.heard()
    del actor
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorUnavailableError):
        dray.get(lost)
    gate.open()
    assert dray.get(tried_again) == 1
    until(lambda: not runtime().actors.all)


def test_a_function_of_a_module_goes_where_its_caller_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "library_of_tasks.py").write_text(
        "import dray\n"
        "@dray.remote(num_cpus=0)\n"
        "def group():\n"
        "    return dray.get_runtime_context().get_placement_group_id()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    @dray.remote(num_cpus=0.1)
    def caller() -> tuple[int, str | None]:
        import library_of_tasks  # type: ignore[import-not-found]

        return os.getpid(), dray.get(library_of_tasks.group.remote())

    dray.init(num_cpus=2)
    group = placement_group([{"CPU": 1}])
    captured = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    pid, found = dray.get(caller.options(scheduling_strategy=captured).remote())
    assert found is not None
    assert dray.get(caller.remote()) == (pid, None)
    remove_placement_group(group)
    assert dray.get(caller.remote()) == (pid, None)
