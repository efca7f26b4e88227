"""Actors, on every engine that runs them: state, order, handles."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psutil
import pytest

import dray
from dray.errors import (
    ActorDiedError,
    TaskCancelledError,
    TaskError,
)
from tests.support.gates import PATIENCE_S, Gate
from tests.support.programs import survivors

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
class Counter:
    """Counts."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step

    def add(self, n: int = 1) -> int:
        self.value += n * self.step
        return self.value

    def fail(self) -> None:
        self.value += 100
        raise KeyError("a method's")

    def pid(self) -> int:
        return os.getpid()

    @dray.method(num_returns=2)
    def halves(self, pair: tuple[int, int]) -> tuple[int, int]:
        return pair

    @staticmethod
    def twice(x: int) -> int:
        return 2 * x

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    def __call__(self, x: int) -> int:
        return self.value + x


def test_an_actor_keeps_its_state_through_calls_and_errors() -> None:
    counter = Counter.remote(10, step=2)
    assert dray.get(counter.add.remote()) == 12
    assert dray.get(counter.add.remote(n=2)) == 16
    with pytest.raises(KeyError, match="a method's") as caught:
        dray.get(counter.fail.remote())
    assert isinstance(caught.value, TaskError)
    assert dray.get(counter.add.remote()) == 118
    assert dray.get([counter.add.remote(0) for _ in range(2)]) == [118, 118]


def test_methods_of_all_kinds() -> None:
    counter = Counter.remote(5)
    first, second = counter.halves.remote((1, 2))
    assert dray.get([first, second]) == [1, 2]
    assert dray.get(counter.halves.options(num_returns=1).remote((1, 2))) == (1, 2)
    assert dray.get(counter.twice.remote(4)) == 8
    assert dray.get(counter.kind.remote()) == "Counter"
    assert dray.get(counter.__call__.remote(1)) == 6
    method = counter.add
    assert dray.get([method.remote(), method.options(name="x").remote()]) == [6, 7]


def test_calls_of_one_caller_run_in_order() -> None:
    @dray.remote
    class Log:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def note(self, n: int) -> None:
            self.seen.append(n)

        def read(self) -> list[int]:
            return self.seen

    log = Log.remote()
    for i in range(300):
        log.note.remote(i)
    assert dray.get(log.read.remote()) == list(range(300))


def test_a_call_that_waits_for_its_argument_keeps_its_place(gate: Gate) -> None:
    @dray.remote
    def slow(gate: Gate) -> int:
        gate.wait()
        return 1

    @dray.remote
    class Log:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def note(self, n: int) -> list[int]:
            self.seen.append(n)
            return list(self.seen)

    log = Log.remote()
    refs = [log.note.remote(slow.remote(gate)), log.note.remote(2)]
    assert dray.wait(refs, timeout=0.05)[0] == []
    gate.open()
    assert dray.get(refs) == [[1], [1, 2]]


@pytest.mark.parametrize("how", ["threaded", "async", "as asked for"])
def test_where_calls_keep_no_order_none_waits_for_an_argument_of_another(
    gate: Gate, how: str
) -> None:
    class Relay:
        def pass_on(self, value: int) -> int:
            return value

    class AsyncRelay(Relay):
        async def wait(self) -> None:
            return None

    @dray.remote
    def late(gate: Gate) -> int:
        gate.pass_through()
        return 1

    options: dict[str, dict[str, Any]] = {
        "threaded": {"max_concurrency": 2},
        "async": {},
        "as asked for": {"allow_out_of_order_execution": True},
    }
    kind = dray.remote(AsyncRelay if how == "async" else Relay)
    relay = kind.options(**options[how]).remote()
    argument = late.remote(gate)
    first = [relay.pass_on.remote(argument) for _ in range(3)]
    gate.heard()
    assert dray.get(relay.pass_on.remote(2), timeout=PATIENCE_S) == 2
    gate.open()
    assert dray.get(first, timeout=PATIENCE_S) == [1, 1, 1]


@pytest.mark.parametrize("how", ["raises", "is killed", "is cancelled"])
def test_a_call_whose_argument_never_comes_lets_the_next_one_run(gate: Gate, how: str) -> None:
    @dray.remote
    class Source:
        async def give(self, gate: Gate) -> None:
            await asyncio.to_thread(gate.wait)
            raise KeyError("nothing to give")

    source, counter = Source.remote(), Counter.remote()
    given = source.give.remote(gate)
    refs = [counter.add.remote(given), counter.add.remote(), counter.add.remote()]
    assert dray.wait(refs, timeout=0.05)[0] == []
    if how == "is killed":
        dray.kill(source)
    elif how == "is cancelled":
        dray.cancel(refs[0])
    gate.open()
    with pytest.raises((KeyError, ActorDiedError, TaskCancelledError)):
        dray.get(refs[0], timeout=PATIENCE_S)
    assert dray.get(refs[1:], timeout=PATIENCE_S) == [1, 2]


def test_programs_look_into_handles_and_classes() -> None:
    handle = Counter.remote()
    assert handle._actor_id.hex() == handle._ray_actor_id == handle._actor_id
    counters: Any = Counter
    plain = counters.__ray_actor_class__
    assert plain is counters.__ray_metadata__.modified_class
    assert plain().add() == 1


def test_actors_live_in_processes_of_their_own() -> None:
    counters = [Counter.remote() for _ in range(3)]
    pids = dray.get([counter.pid.remote() for counter in counters])
    assert len({*pids, os.getpid()}) == 4
    assert dray.get([counter.pid.remote() for counter in counters]) == pids


def test_inheritance() -> None:
    class Base:
        def hello(self) -> str:
            return f"hello from {self.name()}"

        def name(self) -> str:
            return "base"

    @dray.remote
    class Derived(Base):
        def name(self) -> str:
            return "derived"

    assert dray.get(Derived.remote().hello.remote()) == "hello from derived"


def test_what_does_not_fit_is_found_at_the_call() -> None:
    with pytest.raises(TypeError, match="Counter"):
        Counter.remote(1, 2, 3)
    counter = Counter.remote()
    with pytest.raises(TypeError, match="add"):
        counter.add.remote(1, 2)
    with pytest.raises(AttributeError, match="subtract"):
        counter.subtract.remote(1)
    with pytest.raises(TypeError, match=r"\.remote"):
        counter.add(1)  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"Counter\.remote"):
        Counter()


# Concurrency.


def test_handles_are_passed_to_tasks_and_actors() -> None:
    @dray.remote
    def use(counter: Any) -> int:
        value: int = dray.get(counter.add.remote())
        return value

    @dray.remote
    class Keeper:
        def keep(self, box: list[Any]) -> None:
            self.counter = box[0]

        def use(self) -> int:
            value: int = dray.get(self.counter.add.remote())
            return value

        def give(self) -> Any:
            return self.counter

    counter, keeper = Counter.remote(), Keeper.remote()
    assert sorted(dray.get([use.remote(counter) for _ in range(3)])) == [1, 2, 3]
    dray.get(keeper.keep.remote([counter]))
    assert dray.get(keeper.use.remote()) == 4
    back = dray.get(keeper.give.remote())
    assert back == counter
    assert hash(back) == hash(counter)
    assert dray.get(back.add.remote()) == 5
    first, _ = back.halves.remote((1, 2))  # what dray.method said travels with the handle
    assert dray.get(first) == 1


def test_an_actor_lives_while_another_actor_has_its_handle() -> None:
    @dray.remote
    class Keeper:
        def __init__(self, counter: Any) -> None:
            self.counter = counter

        def use(self) -> int:
            value: int = dray.get(self.counter.add.remote())
            return value

    counter = Counter.remote()
    keeper = Keeper.remote(counter)
    dray.get(keeper.use.remote())
    del counter
    assert [dray.get(keeper.use.remote()) for _ in range(3)] == [2, 3, 4]


def test_an_actor_starts_actors_and_tasks() -> None:
    @dray.remote
    class Manager:
        def __init__(self, n: int) -> None:
            self.team = [Counter.remote(i) for i in range(n)]

        def total(self) -> int:
            return sum(dray.get([member.add.remote() for member in self.team]))

        def members(self) -> list[Any]:
            return self.team

    manager = Manager.remote(2)
    assert dray.get(manager.total.remote()) == 1 + 2
    member = dray.get(manager.members.remote())[1]
    assert dray.get(member.add.remote()) == 3


def test_an_actor_made_in_a_task_lives_on_by_its_handle() -> None:
    @dray.remote
    def make() -> Any:
        counter = Counter.remote(7)
        dray.get(counter.add.remote())
        return counter

    counter = dray.get(make.remote())
    assert dray.get(counter.add.remote()) == 9


def test_an_actor_knows_itself() -> None:
    @dray.remote
    class Selfish:
        def __init__(self) -> None:
            self.kept = dray.get_runtime_context().current_actor

        async def me(self) -> Any:
            return os.getpid(), dray.get_runtime_context().current_actor

        async def other(self) -> str:
            return "other"

        async def ask_myself(self) -> Any:
            return await dray.get_runtime_context().current_actor.other.remote()

    selfish = Selfish.remote()
    pid, me = dray.get(selfish.me.remote())
    assert me == selfish
    assert dray.get(selfish.ask_myself.remote()) == "other"
    del selfish  # the handles that it has made do not let it live on
    assert survivors([pid], within_s=PATIENCE_S) == []
    with pytest.raises(ActorDiedError):
        dray.get(me.other.remote())


def test_an_actor_waits_for_the_arguments_of_its_init(gate: Gate) -> None:
    @dray.remote
    def slow(gate: Gate) -> int:
        gate.wait()
        return 41

    counter = Counter.remote(slow.remote(gate))
    ref = counter.add.remote()
    assert dray.wait([ref], timeout=0.05)[0] == []
    gate.open()
    assert dray.get(ref) == 42


def test_environment_variables_are_the_actors_own() -> None:
    @dray.remote
    class Variables:
        def read(self, name: str) -> str | None:
            return os.environ.get(name)

    coloured = Variables.options(runtime_env={"env_vars": {"DRAY_TEST_COLOUR": "blue"}}).remote()
    assert dray.get(coloured.read.remote("DRAY_TEST_COLOUR")) == "blue"
    assert dray.get(Variables.remote().read.remote("DRAY_TEST_COLOUR")) is None


# Ends.


def test_an_actor_ends_with_its_last_handle() -> None:
    counter = Counter.remote()
    process = psutil.Process(dray.get(counter.pid.remote()))
    del counter
    process.wait(PATIENCE_S)


def test_calls_made_before_the_last_handle_went_still_run(gate: Gate) -> None:
    @dray.remote
    class Short:
        def work(self, gate: Gate) -> int:
            gate.pass_through()
            return os.getpid()

    refs = [Short.remote().work.remote(gate) for _ in range(2)]
    gate.heard(2)
    gate.open()
    pids = dray.get(refs)
    assert len(set(pids)) == 2
    assert survivors(pids, within_s=PATIENCE_S) == []


def test_an_actor_holds_its_resources_until_it_ends(gate: Gate) -> None:
    @dray.remote(num_cpus=0, resources={"special": 2})
    class Greedy:
        def ready(self) -> str:
            return "ready"

    first = Greedy.remote()
    dray.get(first.ready.remote())
    second = Greedy.remote()
    ref = second.ready.remote()
    assert dray.wait([ref], timeout=0.1)[0] == []
    del first
    assert dray.get(ref) == "ready"


@dray.remote
class Node:
    """A tree of actors of its own class."""

    def __init__(self, depth: int = 0) -> None:
        self.children = [Node.remote(depth - 1) for _ in range(2)] if depth else []

    def size(self) -> int:
        return 1 + sum(dray.get([child.size.remote() for child in self.children]))

    @dray.method(num_returns=2)
    def two(self) -> tuple[int, int]:
        return 1, 2


def test_an_actor_makes_others_of_its_own_class() -> None:
    assert dray.get(Node.options(num_cpus=0).remote(1).size.remote()) == 3

    @dray.remote
    def ask() -> Any:
        return dray.get(Node.remote().two.remote())

    assert dray.get(ask.remote()) == [1, 2]


@dray.remote
class Shelf:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: int) -> int:
        return 10 * place


def test_special_methods_are_methods() -> None:
    shelf = Shelf.remote()
    assert dray.get([shelf.__len__.remote(), shelf.__getitem__.remote(2)]) == [3, 20]
