"""How actors are named, end, and are made again."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import dray
from dray.errors import (
    ActorDiedError,
    ActorUnavailableError,
    ConfigError,
    TaskError,
    WorkerDiedError,
)
from dray.util import list_named_actors
from tests.support.gates import PATIENCE_S, Gate, count_up, counted, gone, until
from tests.support.programs import survivors

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
class Mortal:
    def __init__(self, births: Path | None = None) -> None:
        self.birth = count_up(births) if births else 0
        self.calls = 0

    def call(self) -> int:
        self.calls += 1
        return self.calls

    def pid(self) -> int:
        return os.getpid()

    def births(self) -> int:
        return self.birth

    def die(self) -> None:
        os._exit(1)

    def die_at_first(self, path: Path) -> int:
        count = count_up(path)
        if count == 1:
            os._exit(1)
        return count

    def leave(self) -> None:
        dray.exit_actor()

    def leave_and_return(self) -> str:
        with contextlib.suppress(SystemExit):
            dray.exit_actor()
        return "left"

    def hold(self, gate: Gate) -> str:
        gate.pass_through()
        return "held"

    def restarted(self) -> bool:
        return dray.get_runtime_context().was_current_actor_reconstructed


def again(call: Callable[[], Any]) -> Any:
    """Call an actor that is being made again: until that is known, calls may be lost."""
    for _ in range(1000):
        try:
            return dray.get(call())
        except ActorUnavailableError:
            pass
    raise AssertionError("the actor does not come back")


# Names.


def test_an_actor_is_found_by_its_name_until_it_ends() -> None:
    mortal = Mortal.options(name="known").remote()
    dray.get(mortal.call.remote())
    found = dray.get_actor("known")
    assert found == mortal
    assert dray.get(found.call.remote()) == 2

    @dray.remote
    def elsewhere() -> int:
        value: int = dray.get(dray.get_actor("known").call.remote())
        return value

    assert dray.get(elsewhere.remote()) == 3
    with pytest.raises(ConfigError, match="known"):
        Mortal.options(name="known").remote()
    del mortal  # with it the actor goes, whoever has found it

    def free() -> bool:
        try:
            dray.get_actor("known")
        except ValueError:
            return True
        return False

    until(free)
    until(lambda: gone(found.call))  # Ray frees the name first
    successor = Mortal.options(name="known").remote()
    assert dray.get(successor.call.remote()) == 1


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(ConfigError, match="'nobody'"):
        dray.get_actor("nobody")
    with pytest.raises(ConfigError, match="empty"):
        dray.get_actor("")


def test_get_if_exists() -> None:
    options = {"name": "one of a kind", "get_if_exists": True}
    first = Mortal.options(**options).remote()
    second = Mortal.options(**options).remote()
    assert first == second
    assert dray.get([first.call.remote(), second.call.remote()]) == [1, 2]
    with pytest.raises(ConfigError, match="name"):
        Mortal.options(get_if_exists=True)


def test_names_live_in_namespaces() -> None:
    here = Mortal.options(name="same").remote()
    there = Mortal.options(name="same", namespace="elsewhere").remote()
    dray.get([here.call.remote(), there.call.remote()])
    assert here != there
    assert dray.get_actor("same") == here
    assert dray.get_actor("same", namespace="elsewhere") == there
    other = Mortal.options(name="other", namespace="elsewhere").remote()
    dray.get(other.pid.remote())
    assert {"same", "other"}.intersection(list_named_actors()) == {"same"}
    names = [entry for entry in list_named_actors(all_namespaces=True) if entry["name"] == "other"]
    assert names == [{"name": "other", "namespace": "elsewhere"}]
    with pytest.raises(ConfigError, match=r"Named actors: (?!.*other)"):
        dray.get_actor("other")
    with pytest.raises(ConfigError, match="Named actors: none"):
        dray.get_actor("same", namespace="nowhere")


def test_the_name_of_an_actor_that_was_killed_is_free() -> None:
    first = Mortal.options(name="again").remote()
    dray.get(first.call.remote())
    dray.kill(first)
    until(lambda: gone(first.call))
    second = Mortal.options(name="again").remote()
    assert dray.get(second.call.remote()) == 1
    assert dray.get_actor("again") == second


# Ends.


def test_kill_ends_an_actor_and_its_waiting_calls(gate: Gate) -> None:
    mortal = Mortal.remote()
    process = psutil.Process(dray.get(mortal.pid.remote()))
    running, waiting = mortal.hold.remote(gate), mortal.call.remote()
    gate.heard()
    dray.kill(mortal)
    for ref in (running, waiting):
        with pytest.raises(ActorDiedError):
            dray.get(ref)
    process.wait(PATIENCE_S)
    until(lambda: gone(mortal.call))
    dray.kill(mortal)  # a second time does nothing


def test_an_actor_that_is_killed_before_it_has_begun() -> None:
    mortal = Mortal.remote()
    ref = mortal.call.remote()
    dray.kill(mortal)
    until(lambda: gone(mortal.call))
    with pytest.raises(ActorDiedError):
        dray.get(mortal.call.remote())
    with contextlib.suppress(ActorDiedError):
        assert dray.get(ref) is not None


@pytest.mark.parametrize("how", ["exit", "signal"])
def test_an_actor_whose_process_dies_is_gone(how: str) -> None:
    mortal = Mortal.remote()
    pid = dray.get(mortal.pid.remote())
    if how == "signal":
        os.kill(pid, signal.SIGKILL)
        ref = mortal.call.remote()
    else:
        ref = mortal.die.remote()
    with pytest.raises(ActorDiedError):
        dray.get(ref)
    with pytest.raises(ActorDiedError):
        dray.get(mortal.call.remote())


def test_exit_actor_ends_it_for_good() -> None:
    mortal = Mortal.options(max_restarts=5).remote()
    process = psutil.Process(dray.get(mortal.pid.remote()))
    with pytest.raises(ActorDiedError):
        dray.get(mortal.leave.remote())
    process.wait(PATIENCE_S)
    with pytest.raises(ActorDiedError):
        dray.get(mortal.call.remote())


def test_exit_actor_ends_it_also_if_the_call_goes_on() -> None:
    mortal = Mortal.options(max_restarts=5).remote()
    process = psutil.Process(dray.get(mortal.pid.remote()))
    with contextlib.suppress(ActorDiedError):  # which Ray gives in place of the result
        assert dray.get(mortal.leave_and_return.remote()) == "left"
    process.wait(PATIENCE_S)
    with pytest.raises(ActorDiedError):
        dray.get(mortal.call.remote())


def test_exit_actor_of_an_async_actor() -> None:
    @dray.remote
    class Async:
        async def pid(self) -> int:
            return os.getpid()

        async def leave(self) -> None:
            dray.exit_actor()

    actor = Async.remote()
    process = psutil.Process(dray.get(actor.pid.remote()))
    with pytest.raises(ActorDiedError):
        dray.get(actor.leave.remote())
    process.wait(PATIENCE_S)


def test_exit_actor_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError):
        dray.exit_actor()

    @dray.remote
    def task() -> None:
        dray.exit_actor()

    with pytest.raises((ConfigError, TaskError)):
        dray.get(task.remote())


def test_an_init_that_raises_is_what_its_calls_tell() -> None:
    @dray.remote
    class Stillborn:
        def __init__(self) -> None:
            raise ValueError("never alive")

        def call(self) -> None:
            return None

    actor = Stillborn.remote()
    for _ in range(2):
        with pytest.raises(ActorDiedError, match="never alive"):
            dray.get(actor.call.remote())


@pytest.mark.parametrize("way", ["raises", "is killed"])
def test_an_init_that_gets_a_failed_reference_fails(way: str) -> None:
    """What has failed was raised by calls as if they had raised it."""

    @dray.remote(max_retries=0)
    def fail() -> None:
        if way == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("no start")

    actor = Mortal.remote(fail.remote())
    for _ in range(2):
        with pytest.raises(ActorDiedError, match="no start" if way == "raises" else None) as caught:
            dray.get(actor.call.remote())
        assert not isinstance(caught.value, KeyError)
        assert caught.value.actor_init_failed


def test_a_failed_reference_fails_one_call_only() -> None:
    @dray.remote
    def fail() -> Path:
        raise KeyError("no argument")

    mortal = Mortal.remote()
    with pytest.raises(KeyError, match="no argument"):
        dray.get(mortal.die_at_first.remote(fail.remote()))
    assert dray.get(mortal.call.remote()) == 1


def test_what_an_actor_has_returned_outlives_it() -> None:
    @dray.remote
    class Maker:
        def make(self, n: int) -> bytes:
            return bytes(n)

    maker = Maker.remote()
    refs = [maker.make.remote(10), maker.make.remote(1_000_000)]
    dray.wait(refs, num_returns=2)
    dray.kill(maker)
    until(lambda: _raises(maker.make.remote(1)))
    assert [len(value) for value in dray.get(refs)] == [10, 1_000_000]


def _raises(ref: dray.ObjectRef) -> bool:
    try:
        dray.get(ref)
    except WorkerDiedError:
        return True
    return False


# Restarts.


def test_an_actor_is_made_again_as_often_as_allowed(tmp_path: Path, core_engine: str) -> None:
    mortal = Mortal.options(max_restarts=1).remote(tmp_path / "births")
    assert dray.get([mortal.call.remote(), mortal.call.remote()]) == [1, 2]
    assert dray.get(mortal.restarted.remote()) is False
    pid = dray.get(mortal.pid.remote())
    with pytest.raises((ActorDiedError, ActorUnavailableError)):
        dray.get(mortal.die.remote())
    assert again(mortal.call.remote) == 1  # the state is that of a new object
    assert again(mortal.births.remote) == 2
    assert again(mortal.restarted.remote) is True
    assert again(mortal.pid.remote) != pid
    with pytest.raises(ActorDiedError):
        dray.get(mortal.die.remote())
    with pytest.raises(ActorDiedError) as caught:
        dray.get(mortal.call.remote())
    assert core_engine == "ray" or "max_restarts=1 allows no further restart" in str(caught.value)
    assert counted(tmp_path / "births") == 2


def test_calls_run_again_after_a_restart_on_request(tmp_path: Path) -> None:
    # Ray may use retries up on the process that has died.
    mortal = Mortal.options(max_restarts=-1, max_task_retries=3).remote()
    assert dray.get(mortal.die_at_first.remote(tmp_path / "count")) == 2
    assert dray.get(mortal.call.remote()) == 1


def test_calls_that_have_not_begun_survive_a_restart(tmp_path: Path) -> None:
    mortal = Mortal.options(max_restarts=-1, max_task_retries=-1).remote()
    refs = [mortal.die_at_first.remote(tmp_path / "count"), *(mortal.call.remote() for _ in "abc")]
    second_try, *calls = dray.get(refs)
    assert second_try == 2
    assert sorted(calls) == [1, 2, 3]  # Ray may change the order of what it sends again


def test_kill_may_leave_an_actor_its_restarts() -> None:
    mortal = Mortal.options(max_restarts=1).remote()
    pid = dray.get(mortal.pid.remote())
    dray.kill(mortal, no_restart=False)
    assert survivors([pid], within_s=PATIENCE_S) == []
    second = again(mortal.pid.remote)
    assert second != pid
    dray.kill(mortal, no_restart=False)
    assert survivors([second], within_s=PATIENCE_S) == []
    until(lambda: gone(mortal.call))
    with pytest.raises(ActorDiedError, match=r"ray\.kill") as caught:
        dray.get(mortal.call.remote())
    assert "on its own" not in str(caught.value)


def test_so_may_kill_one_that_has_not_started(core_engine: str) -> None:
    if core_engine == "ray":
        pytest.skip("Ray may ignore a kill before the actor's creation has reached a worker")
    taker = Mortal.options(resources={"special": 2}).remote()
    dray.get(taker.pid.remote())
    mortal = Mortal.options(resources={"special": 1}, max_restarts=1).remote()
    dray.kill(mortal, no_restart=False)
    dray.kill(taker)
    assert dray.get(mortal.call.remote(), timeout=PATIENCE_S) == 1
    dray.kill(mortal, no_restart=False)  # that was its restart
    with pytest.raises(ActorDiedError, match=r"was ended by dray\.kill"):
        dray.get(mortal.call.remote())


def test_a_method_that_raises_is_called_again_on_request(tmp_path: Path) -> None:
    @dray.remote(max_task_retries=2)
    class Flaky:
        @dray.method(retry_exceptions=[ValueError])
        def third_time(self, path: Path) -> int:
            count = count_up(path)
            if count < 3:
                raise ValueError("not yet")
            return count

        @dray.method(max_task_retries=2, retry_exceptions=[KeyError])
        def other(self, path: Path) -> None:
            count_up(path)
            raise ValueError("never")

    flaky = Flaky.remote()
    assert dray.get(flaky.third_time.remote(tmp_path / "count")) == 3
    with pytest.raises(ValueError, match="never"):
        dray.get(flaky.other.remote(tmp_path / "other"))
    assert counted(tmp_path / "other") == 1


def test_a_handle_elsewhere_follows_a_restart() -> None:
    @dray.remote
    class User:
        def __init__(self, mortal: Any) -> None:
            self.mortal = mortal

        def use(self) -> int:
            return int(again(self.mortal.pid.remote))

    mortal = Mortal.options(max_restarts=1).remote()
    user = User.remote(mortal)
    before = dray.get(user.use.remote())
    dray.kill(mortal, no_restart=False)
    assert survivors([before], within_s=PATIENCE_S) == []
    assert dray.get(user.use.remote()) != before


def test_a_detached_actor_lives_without_a_handle() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not this program")
        mortal = Mortal.options(name="detached", lifetime="detached").remote()
    assert dray.get(mortal.call.remote()) == 1
    del mortal
    found = dray.get_actor("detached")
    assert dray.get(found.call.remote()) == 2
    dray.kill(found)
    until(lambda: gone(found.call))  # Ray kills while it takes further calls
