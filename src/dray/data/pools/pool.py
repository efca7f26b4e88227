"""Pools of workers: actors that do one operation, block by block, as many as there is room for.

Blocks go to actors that have started. A pool begins with its least number of them, or with as many
as resources are free for, and takes more as they come free. One that has no actor, and no room for
one, gets it from another pool of this process: from one that has several, or whose results nobody
takes at the moment. So pools that follow each other, or that are read by turns, cannot wait for
each other for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dray import session
from dray.core.actor import ActorHandle
from dray.core.context import get_runtime_context
from dray.core.objects import get, kill, wait
from dray.core.options import actor_options
from dray.core.remote import remote
from dray.data.forms.blocks import Block, Value
from dray.data.operations import FunctionOperation, UserFunction
from dray.engines.object_ref import ObjectRef
from dray.errors import ActorError, DataFunctionError, TaskError, WorkerDiedError, mixed_with
from dray.scheduling.capacity import to_fixed

_logger = logging.getLogger(__name__)

# Blocks that an actor has, together with the one that it is at.
_BLOCKS_OF_ONE = 2
# Processes that may die at a block, or one after another as they start.
_DEATHS = 4
# Seconds after which a pool with too few actors looks again for free resources, while blocks wait:
# no engine tells of them.
_LOOK_AGAIN_S = 0.5

# Of what pools have and lack; reentrant, since collecting garbage may close a pool anywhere.
_lock = threading.RLock()
_open: list[Pool] = []


@dataclass(eq=False)
class _Member:
    """An actor of a pool.

    Attributes:
        actor: The only handle; None if it has been given up, and ends after its calls.
        begun: Ready when it has started; None then.
        load: Number of its calls that are not done.
    """

    actor: ActorHandle | None
    begun: ObjectRef | None
    load: int = 0


@dataclass(eq=False)
class _Call:
    """A block, and what becomes of it.

    Attributes:
        ref: The actor's result, while it is not here.
        outcome: Its result, or the error, once it is here.
        deaths: Number of processes that have died at it.
    """

    block: Block
    member: _Member | None = None
    ref: ObjectRef | None = None
    outcome: list[Block] | Exception | None = None
    deaths: int = 0


class Pool:
    """The actors of one iteration, which ends them.

    Args:
        options: Options of each actor. If they say how often it is made again, that is the
            engine's affair; else a new one takes its place.

    Raises:
        InfeasibleError: No node can ever hold one of them.
    """

    def __init__(
        self, operation: FunctionOperation, options: Mapping[str, object], least: int, most: int
    ) -> None:
        self._operation = operation
        # What the actor prints, and a message of its death, say whose function it applies.
        self._kind = remote(**options)(type(operation.function.name, (_Worker,), {}))
        self._made_again = "max_restarts" in options
        asked = actor_options(_Worker, options)
        here = get_runtime_context()
        in_group = here.should_capture_child_tasks_in_placement_group
        # What a placement group has free is not told.
        grouped = in_group or asked.placement.kind == "group"
        self._takes = {} if grouped else to_fixed(asked.resources)
        # The ranks of a training have a pool each, and none is to begin with what all need.
        self._least = 1 if self._takes and here.get_actor_id() is not None else least
        self._most = most
        self._runtime = session.current_runtime()
        self._members: list[_Member] = []
        self._calls: deque[_Call] = deque()  # in the order of blocks
        self._lacks: dict[str, int] = {}
        self._at_work = False  # or it waits for blocks, or for somebody to take its results
        self._has_made = False
        self._lacks_room = False  # for as many actors as it wants
        self._failed_starts = 0

    def results(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield what becomes of blocks, in their order."""
        with _lock:
            _open.append(self)
        try:
            self._grow(at_least=0)
            for block in blocks:
                self._calls.append(_Call(block))
                yield from self._made(until=lambda: not self._is_full())
            yield from self._made(until=lambda: not self._calls)
        finally:
            self._close()

    # Blocks.

    def _made(self, until: Callable[[], bool]) -> Iterator[Block]:
        """Yield the next results, until all blocks are dealt and a condition holds."""
        while True:
            self._at_work = True
            self._settle(timeout=0)
            dealt = self._deal()
            if dealt and until():
                break
            outcome = self._calls[0].outcome
            if outcome is None:
                looks_again = self._lacks_room and not dealt
                self._settle(timeout=_LOOK_AGAIN_S if looks_again else None)
                continue
            self._calls.popleft()
            self._rest()
            if isinstance(outcome, Exception):
                raise outcome
            yield from outcome
        self._rest()

    def _rest(self) -> None:
        """Let other pools have what this one does not need until it is at work again."""
        self._at_work = False
        _share()

    def _is_full(self) -> bool:
        begun = sum(member.begun is None for member in self._members)
        return len(self._calls) > max(1, begun) * _BLOCKS_OF_ONE

    def _deal(self) -> bool:
        """Give blocks to actors that have room for them; return whether all are dealt."""
        for call in self._calls:
            if call.outcome is not None or call.ref is not None:
                continue
            with _lock:
                begun = [member for member in self._members if member.begun is None]
                member = min(begun, key=lambda member: member.load, default=None)
                if member is None or member.load == _BLOCKS_OF_ONE:
                    break
                member.load += 1
                actor = member.actor
            assert actor is not None
            call.member, call.ref = member, actor.apply.remote(call.block)
        else:
            return True
        self._grow(at_least=1)
        return False

    def _settle(self, timeout: float | None) -> None:
        """Wait until something is done, or so many seconds are over; take note of all that is."""
        starts = {
            member.begun: member for member in list(self._members) if member.begun is not None
        }
        calls = {call.ref: call for call in self._calls if call.ref is not None}
        refs = [*starts, *calls]
        if not refs:
            return
        if timeout != 0:
            wait(refs, timeout=timeout)
        for ref in wait(refs, num_returns=len(refs), timeout=0)[0]:
            if ref in calls:
                self._take(calls[ref], ref)
            else:
                self._welcome(starts[ref], ref)

    def _take(self, call: _Call, ref: ObjectRef) -> None:
        member, call.member, call.ref = call.member, None, None
        assert member is not None
        member.load -= 1
        try:
            call.outcome = get(ref)
            self._has_made = True
        except Exception as error:  # noqa: BLE001 (it is raised when it is its turn)
            call.outcome = error
            if isinstance(error, ActorError) and not isinstance(error, TaskError):
                call.outcome = self._tried_again(call, member, error)

    # Actors.

    def _grow(self, at_least: int) -> None:
        """Make more actors, as far as resources are free.

        Args:
            at_least: The number to have or to wait for, whatever is free.
        """
        with _lock:
            there = len(self._members)
            wanted = (self._most if self._has_made else self._least) - there
            self._lacks_room = False
            if wanted < 1:
                return
            free = _free() if self._takes else {}
            room = min(
                (free.get(k, 0) // units for k, units in self._takes.items()), default=wanted
            )
            self._lacks_room = room < wanted
            for _ in range(max(min(wanted, room), at_least - there)):
                actor = self._kind.remote(self._operation)
                self._members.append(_Member(actor, actor.__ray_ready__.remote()))
            if room < 1 and not there and at_least:
                lacks = {k: units - free.get(k, 0) for k, units in self._takes.items()}
                self._lacks = {k: units for k, units in lacks.items() if units > 0}
                _share()

    def _welcome(self, member: _Member, ref: ObjectRef) -> None:
        """Take note that an actor has started, or has failed to."""
        with _lock:
            if member not in self._members:  # it was given up
                return
            try:
                get(ref)
            except ActorError as error:
                if error.actor_init_failed or self._made_again:
                    raise
                self._failed_starts += 1
                if self._failed_starts == _DEATHS:
                    raise self._lost("before it had begun", _DEATHS, error) from error
                self._members.remove(member)
                return
            self._failed_starts = 0
            self._lacks = {}
            member.begun = None

    def _tried_again(self, call: _Call, member: _Member, error: ActorError) -> Exception | None:
        """Return the error if a block's actor has died once too often; else None."""
        with _lock:
            there = member in self._members
            if there:  # of its calls, this is the one that it was at
                self._members.remove(member)
                call.deaths += 1
        where = f"on {call.block.origin or 'a block'}"
        if self._made_again or call.deaths == _DEATHS:
            failure = self._lost(where, call.deaths, error)
            failure.__cause__ = error
            return failure
        if there:
            name = self._operation.function.name
            why = _status(error)
            _logger.warning("a worker of %s died %s, which is tried again: %s", name, where, why)
        return None

    def _lost(self, where: str, deaths: int, error: ActorError) -> Exception:
        """Return the error that says where workers have died."""
        name = self._operation.function.name
        times = f" {deaths} times, the last time so" if deaths > 1 else ""
        text = f"{name} failed {where}: its worker died{times}: {_status(error)}"

        def build(kind: Any) -> Any:
            return kind(error.exitcode, details=text)

        return mixed_with(DataFunctionError(text), error, build)

    # Giving way.

    def _spare(self, lacking: Mapping[str, int]) -> int:
        """Return how many actors it can give up that hold what another pool lacks."""
        if not lacking.keys() & self._takes.keys():
            return 0
        return len(self._members) - self._at_work

    def _give_up(self) -> None:
        """Give up an actor: one that has not started, or else the one that has the least to do."""
        member = min(self._members, key=lambda member: (member.begun is None, member.load))
        self._end(member, at_once=member.begun is not None)

    def _end(self, member: _Member, at_once: bool) -> None:
        self._members.remove(member)
        actor, member.actor = member.actor, None
        assert actor is not None
        if at_once and self._is_there():
            kill(actor)

    def _is_there(self) -> bool:
        """Return whether the engine runs that the actors are of; else they have ended with it."""
        if sys.is_finalizing() or not session.is_initialized():
            return False
        return session.current_runtime() is self._runtime

    def _close(self) -> None:
        with _lock:
            _open.remove(self)
            for member in list(self._members):
                self._end(member, at_once=bool(member.load) or member.begun is not None)


def _free() -> dict[str, int]:
    """Return the resources that are free; those of actors that have just been made are not.

    A Ray cluster tells of them only after a while.
    """
    left = to_fixed(session.cluster_resources())
    for pool in _open:
        for name, units in pool._takes.items():
            left[name] = left.get(name, 0) - units * len(pool._members)
    free = to_fixed(session.available_resources())
    return {name: max(0, min(units, left.get(name, 0))) for name, units in free.items()}


def _status(error: ActorError) -> str:
    """Return how a process ended, without the advice to have an actor made again."""
    if error.exitcode is None:
        return str(error)
    return str(WorkerDiedError(error.exitcode, out_of_memory=error.out_of_memory))


def _share() -> None:
    """Have pools give up actors for those that have none, and lack resources for one."""
    with _lock:
        for poor in _open:
            while any(units > 0 for units in poor._lacks.values()):
                lacks = {k: units for k, units in poor._lacks.items() if units > 0}
                rich = max(_open, key=lambda pool: 0 if pool is poor else pool._spare(lacks))
                if rich is poor or not rich._spare(lacks):
                    break
                rich._give_up()
                poor._lacks = {k: units - rich._takes.get(k, 0) for k, units in lacks.items()}


class _Worker:
    """An actor that applies an operation; a class of the user has one instance here."""

    def __init__(self, operation: FunctionOperation) -> None:
        function = operation.function
        self._call = function.made()
        self._loop: asyncio.AbstractEventLoop | None = None
        made = UserFunction(self._called, function.method, called=function.name)
        self._operation = dataclasses.replace(operation, function=made)

    def apply(self, block: Block) -> list[Block]:
        """Return what becomes of a block."""
        return [made._replace(own=False) for made in self._operation.apply([block])]

    def _called(self, value: object) -> Value:
        """Call the user's function; wait for it if it is an async one."""
        returned = self._call(value)
        if inspect.isasyncgen(returned):
            return self._items(returned)
        return self._awaited(returned) if inspect.isawaitable(returned) else returned

    def _items(self, generator: AsyncIterator[Value]) -> Iterator[Value]:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield self._awaited(generator.__anext__())

    def _awaited(self, awaitable: Value) -> Value:
        if self._loop is None:  # one for all calls, as what a class keeps may belong to its loop
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        return self._loop.run_until_complete(awaitable)
