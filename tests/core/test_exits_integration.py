"""What `sys.exit` means in tasks and actors: a crash, unless an actor says `sys.exit(0)`."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import ActorDiedError, ActorUnavailableError, WorkerDiedError
from tests.support.gates import PATIENCE_S, Gate, count_up, counted

NO_STATUS = "no status"


def _exit(status: Any) -> None:
    if status == NO_STATUS:
        sys.exit()
    sys.exit(status)


class Exiting:
    def __init__(self, births: Path | None = None, status: Any = None) -> None:
        if births is not None and count_up(births) < 3:
            _exit(status)

    def exit(self, status: Any) -> None:
        _exit(status)

    def exit_at_first(self, calls: Path) -> str:
        if count_up(calls) == 1:
            sys.exit(1)
        return "called again"

    def alive(self) -> bool:
        return True


class ExitingAsync:
    def __init__(self, births: Path | None = None) -> None:
        if births is not None and count_up(births) < 3:
            _exit(1)

    async def exit(self, status: Any) -> None:
        _exit(status)

    async def exit_beside(self, error: BaseException) -> str:
        async def leave() -> None:
            raise error

        self.beside = asyncio.create_task(leave())
        return "returned"

    async def never(self) -> None:
        await asyncio.Event().wait()

    async def alive(self) -> bool:
        return True


def alive(actor: Any) -> bool:
    """Return whether an actor answers, now or when it is made again."""
    while True:
        try:
            return bool(dray.get(actor.alive.remote()))
        except ActorUnavailableError:
            continue
        except ActorDiedError:
            return False


def test_an_actor_that_exits_is_made_again_unless_it_means_to(core_engine: str) -> None:
    restarted = dray.remote(max_restarts=1)(Exiting).remote()
    with pytest.raises(ActorUnavailableError):
        dray.get(restarted.exit.remote(1))
    assert alive(restarted)
    with pytest.raises(ActorDiedError, match=r"Exiting.*sys\.exit\(0\)"):
        dray.get(restarted.exit.remote(0))
    assert not alive(restarted)


@pytest.mark.parametrize("status", [2, NO_STATUS, "words", True])
def test_whatever_is_not_zero_is_a_crash(status: Any, process_engine: None) -> None:
    actor = dray.remote(max_restarts=1)(Exiting).remote()
    with pytest.raises(ActorUnavailableError) as caught:
        dray.get(actor.exit.remote(status))
    assert caught.value.exitcode == {2: 2, NO_STATUS: 0}.get(status, 1)
    assert alive(actor)


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
@pytest.mark.parametrize("kind", [Exiting, ExitingAsync])
def test_zero_ends_an_actor_that_could_be_made_again(
    kind: type, options: dict[str, Any], process_engine: None
) -> None:
    actor = dray.remote(max_restarts=-1, **options)(kind).remote()
    with pytest.raises(ActorUnavailableError):
        dray.get(actor.exit.remote(1))
    assert alive(actor)
    with pytest.raises(ActorDiedError, match=r"sys\.exit\(0\)"):
        dray.get(actor.exit.remote(0))
    assert not alive(actor)


@pytest.mark.parametrize(
    ("error", "status"),
    [(SystemExit(3), 3), (SystemExit(), 0), (SystemExit("words"), 1), (KeyboardInterrupt(), 130)],
    ids=["three", "none", "words", "interrupt"],
)
def test_what_an_async_actor_runs_beside_its_calls_may_crash_it(
    error: BaseException, status: int, process_engine: None
) -> None:
    actor = dray.remote(max_restarts=1)(ExitingAsync).remote()
    waiting = actor.never.remote()
    assert dray.get(actor.exit_beside.remote(error)) == "returned"
    with pytest.raises(ActorUnavailableError) as caught:
        dray.get(waiting, timeout=PATIENCE_S)
    assert caught.value.exitcode == status
    assert alive(actor)


def test_what_an_async_actor_runs_beside_its_calls_may_mean_to_exit(process_engine: None) -> None:
    actor = dray.remote(max_restarts=-1)(ExitingAsync).remote()
    waiting = actor.never.remote()
    assert dray.get(actor.exit_beside.remote(SystemExit(0))) == "returned"
    with pytest.raises(ActorDiedError, match=r"sys\.exit\(0\)"):
        dray.get(waiting, timeout=PATIENCE_S)
    assert not alive(actor)


@dray.remote
class Leaving:
    def leave(self) -> str:
        thread = threading.Thread(target=dray.exit_actor)
        thread.start()
        thread.join()
        return "left"

    def hold(self, gate: Gate) -> str:
        gate.pass_through()
        return "held"


@dray.remote
class LeavingAsync:
    async def leave(self) -> str:
        async def leave() -> None:
            dray.exit_actor()

        self.beside = asyncio.create_task(leave())
        return "left"

    async def hold(self, gate: Gate) -> str:
        await asyncio.to_thread(gate.pass_through)
        return "held"


@pytest.mark.parametrize(
    ("kind", "options"), [(Leaving, {}), (Leaving, {"max_concurrency": 2}), (LeavingAsync, {})]
)
def test_exit_actor_beside_the_calls_ends_the_actor_after_those_that_run(
    kind: Any, options: dict[str, Any], gate: Gate, process_engine: None
) -> None:
    actor = kind.options(max_restarts=-1, **options).remote()
    running = None
    if options or kind is LeavingAsync:
        running = actor.hold.remote(gate)
        gate.heard()
    assert dray.get(actor.leave.remote()) == "left"
    gate.open()
    assert running is None or dray.get(running) == "held"

    def call_on() -> None:
        while True:
            dray.get(actor.hold.remote(gate))

    with pytest.raises(ActorDiedError, match="exit_actor"):
        call_on()


def test_a_call_that_exits_runs_again_if_it_may(tmp_path: Path, process_engine: None) -> None:
    actor = dray.remote(max_restarts=1, max_task_retries=1)(Exiting).remote()
    assert dray.get(actor.exit_at_first.remote(tmp_path / "calls")) == "called again"


@pytest.mark.parametrize("kind", [Exiting, ExitingAsync])
def test_an_init_that_exits_runs_again_if_it_may(
    kind: type, tmp_path: Path, process_engine: None
) -> None:
    births = tmp_path / "births"
    arguments = (births, 1) if kind is Exiting else (births,)
    assert alive(dray.remote(max_restarts=5)(kind).remote(*arguments))
    assert counted(births) == 3


def test_an_init_may_mean_to_exit(tmp_path: Path, process_engine: None) -> None:
    births = tmp_path / "births"
    assert not alive(dray.remote(max_restarts=5)(Exiting).remote(births, 0))
    assert counted(births) == 1


@dray.remote
def leave(status: Any, calls: Path) -> int:
    if count_up(calls) == 1:
        _exit(status)
    return counted(calls)


@pytest.mark.parametrize("status", [0, 1])
def test_a_task_that_exits_runs_again_or_is_a_death(
    status: int, tmp_path: Path, process_engine: None
) -> None:
    assert dray.get(leave.options(max_retries=1).remote(status, tmp_path / "calls")) == 2
    for retries, told in (
        (0, "set max_retries to have it run again"),
        (1, "attempt 2, the last that"),
    ):
        always = dray.remote(max_retries=retries)(_exit)
        with pytest.raises(WorkerDiedError, match=told) as caught:
            dray.get(always.remote(status))
        assert caught.value.exitcode == status


@pytest.mark.usefixtures("_quiet")
def test_exits_mean_the_same_on_the_inline_engine(tmp_path: Path) -> None:
    dray.shutdown()
    dray.init(engine="inline")
    for kind in (Exiting, ExitingAsync):
        actor = dray.remote(max_restarts=1)(kind).remote()
        with pytest.raises(ActorUnavailableError):
            dray.get(actor.exit.remote(1))
        assert dray.get(actor.alive.remote())
        with pytest.raises(ActorDiedError):
            dray.get(actor.exit.remote(0))
        assert not alive(actor)
    again = dray.remote(max_restarts=1, max_task_retries=1)(Exiting).remote()
    assert dray.get(again.exit_at_first.remote(tmp_path / "calls")) == "called again"
    assert alive(dray.remote(max_restarts=5)(Exiting).remote(tmp_path / "births", 1))
    assert not alive(dray.remote(max_restarts=5)(Exiting).remote(tmp_path / "other", 0))
    assert dray.get(leave.remote(1, tmp_path / "tasks")) == 2
    dray.shutdown()
