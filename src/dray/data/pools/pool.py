"""Pools of actors that run one operation, block by block, on as many actors as resources allow.

Blocks go to actors that have started. A pool begins with its minimum number of actors, or with as
many as resources are free for, and adds more when resources become free. If a pool has no actor and
there are no resources for one, another pool of this process gives up an actor: a pool that has
several, or whose results are not being read at the moment. Pools that are read in sequence or in
turn therefore cannot wait for each other forever.
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

# The maximum number of blocks that an actor has, including the one that it works on.
_BLOCKS_OF_ONE = 2
# The number of processes that may die on one block, or in succession while they start.
_DEATHS = 4
# Seconds after which a pool with too few actors checks for free resources, while blocks wait.
# Engines do not report them.
_LOOK_AGAIN_S = 0.5

# Guards the state of all pools; reentrant, as garbage collection may close a pool at any point.
_lock = threading.RLock()
_open: list[Pool] = []


@dataclass(eq=False)
class _Member:
    """An actor of a pool.

    Attributes:
        actor: The only handle; None if the actor has been given up and ends after its calls.
        begun: Becomes ready when the actor has started; then None.
        load: The number of its unfinished calls.
    """

    actor: ActorHandle | None
    begun: ObjectRef | None
    load: int = 0


@dataclass(eq=False)
class _Call:
    """A block and its result.

    Attributes:
        ref: The reference to the actor's result until it arrives.
        outcome: The result or the error after it has arrived.
        deaths: The number of processes that have died on this block.
    """

    block: Block
    member: _Member | None = None
    ref: ObjectRef | None = None
    outcome: list[Block] | Exception | None = None
    deaths: int = 0


class Pool:
    """The actors of one iteration; they end with it.

    Args:
        options: Options of each actor. If they include `max_restarts`, the engine restarts actors;
            otherwise the pool replaces an actor that dies.

    Raises:
        InfeasibleError: No node can ever run one of the actors.
    """

    def __init__(
        self, operation: FunctionOperation, options: Mapping[str, object], least: int, most: int
    ) -> None:
        self._operation = operation
        # The name of the class is shown in the actor's output and in messages about its death.
        self._kind = remote(**options)(type(operation.function.name, (_Worker,), {}))
        self._made_again = "max_restarts" in options
        asked = actor_options(_Worker, options)
        here = get_runtime_context()
        in_group = here.should_capture_child_tasks_in_placement_group
        # The free resources of a placement group are not known.
        grouped = in_group or asked.placement.kind == "group"
        self._takes = {} if grouped else to_fixed(asked.resources)
        # In a training, each rank has a pool, and none may begin with the resources that all need.
        self._least = 1 if self._takes and here.get_actor_id() is not None else least
        self._most = most
        self._runtime = session.current_runtime()
        self._members: list[_Member] = []
        self._calls: deque[_Call] = deque()  # in the order of the blocks
        self._lacks: dict[str, int] = {}
        self._at_work = False  # False while it waits for blocks, or for a reader
        self._has_made = False
        self._lacks_room = False  # for all actors that it wants
        self._failed_starts = 0

    def results(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the results for blocks, in order."""
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
        """Yield the next results, until all blocks are dealt out and a condition holds."""
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
        """Let other pools take the actors that this one does not need until it works again."""
        self._at_work = False
        _share()

    def _is_full(self) -> bool:
        begun = sum(member.begun is None for member in self._members)
        return len(self._calls) > max(1, begun) * _BLOCKS_OF_ONE

    def _deal(self) -> bool:
        """Send blocks to actors with room for them; return whether all blocks are sent."""
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
        """Wait until a call or a start is done, or until the timeout; record all finished ones."""
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
        except Exception as error:  # noqa: BLE001 (raised when the block's turn comes)
            call.outcome = error
            if isinstance(error, ActorError) and not isinstance(error, TaskError):
                call.outcome = self._tried_again(call, member, error)

    # Actors.

    def _grow(self, at_least: int) -> None:
        """Start more actors, as far as resources are free.

        Args:
            at_least: The number of actors to have or to wait for, even if no resources are free.
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
        """Record that an actor has started or failed to start."""
        with _lock:
            if member not in self._members:  # the pool has given it up
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
        """Return the error if a block's actors died too often; None if it is tried again."""
        with _lock:
            there = member in self._members
            if there:  # the actor worked on this block, and not on its other one
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
            _logger.warning(
                "a worker of %s died %s, and dray tries that block again: %s", name, where, why
            )
        return None

    def _lost(self, where: str, deaths: int, error: ActorError) -> Exception:
        """Return the error for workers that have died."""
        name = self._operation.function.name
        times = f" {deaths} times, the last time so" if deaths > 1 else ""
        text = f"{name} failed {where}: its worker died{times}: {_status(error)}"

        def build(kind: Any) -> Any:
            return kind(error.exitcode, details=text)

        return mixed_with(DataFunctionError(text), error, build)

    # Giving up actors for other pools.

    def _spare(self, lacking: Mapping[str, int]) -> int:
        """Return the number of actors to spare that hold resources which another pool lacks."""
        if not lacking.keys() & self._takes.keys():
            return 0
        return len(self._members) - self._at_work

    def _give_up(self) -> None:
        """Give up an actor: one that has not started, or else the one with the least work."""
        member = min(self._members, key=lambda member: (member.begun is None, member.load))
        self._end(member, at_once=member.begun is not None)

    def _end(self, member: _Member, at_once: bool) -> None:
        self._members.remove(member)
        actor, member.actor = member.actor, None
        assert actor is not None
        if at_once and self._is_there():
            kill(actor)

    def _is_there(self) -> bool:
        """Return whether the engine of the actors still runs; otherwise they have ended with it."""
        if sys.is_finalizing() or not session.is_initialized():
            return False
        return session.current_runtime() is self._runtime

    def _close(self) -> None:
        with _lock:
            _open.remove(self)
            for member in list(self._members):
                self._end(member, at_once=bool(member.load) or member.begun is not None)


def _free() -> dict[str, int]:
    """Return the free resources, without those of actors that have just been created.

    A Ray cluster reports these only after a delay.
    """
    left = to_fixed(session.cluster_resources())
    for pool in _open:
        for name, units in pool._takes.items():
            left[name] = left.get(name, 0) - units * len(pool._members)
    free = to_fixed(session.available_resources())
    return {name: max(0, min(units, left.get(name, 0))) for name, units in free.items()}


def _status(error: ActorError) -> str:
    """Return how a process ended, without the advice to restart the actor."""
    if error.exitcode is None:
        return str(error)
    return str(WorkerDiedError(error.exitcode, out_of_memory=error.out_of_memory))


def _share() -> None:
    """Let pools give up actors for pools that have no actor and lack resources for one."""
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
    """An actor that applies an operation; a user's class has one instance in it."""

    def __init__(self, operation: FunctionOperation) -> None:
        function = operation.function
        self._call = function.made()
        self._loop: asyncio.AbstractEventLoop | None = None
        made = UserFunction(self._called, function.method, called=function.name)
        self._operation = dataclasses.replace(operation, function=made)

    def apply(self, block: Block) -> list[Block]:
        """Return the results for a block."""
        return [made._replace(own=False) for made in self._operation.apply([block])]

    def _called(self, value: object) -> Value:
        """Call the user's function; if it is async, wait for its result."""
        returned = self._call(value)
        if inspect.isasyncgen(returned):
            return self._items(returned)
        return self._awaited(returned) if inspect.isawaitable(returned) else returned

    def _items(self, generator: AsyncIterator[Value]) -> Iterator[Value]:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield self._awaited(generator.__anext__())

    def _awaited(self, awaitable: Value) -> Value:
        if self._loop is None:  # one loop for all calls, as the class may keep objects of it
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
        return self._loop.run_until_complete(awaitable)
