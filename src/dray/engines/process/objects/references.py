"""References in one process, and the messages that tell the hub of their creation and end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.rpc.serialization import note_reference
from dray.engines.runtime import ActorBackend, CallOptions, Group, Submit
from dray.interrupts import final, shielded

# All numbers of a session are smaller; one that has left it has the session's own above them.
_OWN_BITS = 96


class ReferenceRuntime(Protocol):
    """The part of a process that its references need."""

    session: int
    table: ReferenceCounter

    def on_received(self, number: int) -> None: ...

    def keep(self, number: int) -> None: ...

    def future_of(self, ref: ProcessRef) -> Future[Any]: ...

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]: ...

    def wait(
        self, refs: Sequence[Any], num_returns: int, timeout_s: float | None, fetch: bool
    ) -> tuple[list[ObjectRef], list[ObjectRef]]: ...

    def next_item(self, stream: int, index: int) -> ObjectRef | None: ...

    def next_item_future(self, stream: int, index: int) -> Future[Any]: ...

    def pass_by(self, stream: int, index: int) -> None: ...

    def bind_method(self, actor: ProcessActor, method: str, options: CallOptions) -> Submit: ...

    def group_of(self, number: int) -> ProcessGroup: ...

    def order(self, *message: object) -> None: ...


class ReferenceCounter:
    """Counts of the references to each object in this process.

    A reference may die at any moment, also while its own thread is in here; so its end is only
    noted then, and dealt with by whoever has the lock, at the latest when the lock is released.

    Args:
        tell: Tells the hub that this process holds an object, or does not any more.
        settle: Deals with what was noted, if nobody has the lock.
    """

    def __init__(self, tell: Callable[[str, int], None], settle: Callable[[], None]) -> None:
        self._tell = tell
        self._settle = settle
        self.counts: dict[int, int] = {}
        self.dropped: deque[int] = deque()
        self.unpinned: deque[int] = deque()

    def drop(self, number: int) -> None:
        """Note that a reference has died."""
        self.dropped.append(number)
        self._settle()

    def unpin(self, region: int) -> None:
        """Note that nobody here looks into a region of shared memory any more."""
        self.unpinned.append(region)
        self._settle()

    # With the lock held.

    def add_created(self, number: int) -> None:
        """Take note of an object's first reference, which the hub knows of."""
        self.counts[number] = self.counts.get(number, 0) + 1

    def add_received(self, number: int) -> None:
        """Take note of a reference that has come in."""
        count = self.counts.get(number, 0)
        self.counts[number] = count + 1
        if not count:
            self._tell("hold", number)

    def settle(self) -> None:
        """Deal with what was noted."""
        while self.dropped:
            number = self.dropped.popleft()
            left = self.counts.get(number, 0) - 1
            if left > 0:
                self.counts[number] = left
            else:
                self.counts.pop(number, None)
                self._tell("drop", number)
        while self.unpinned:
            self._tell("unpin", self.unpinned.popleft())


_runtime: ReferenceRuntime | None = None
_join: Callable[[], object] | None = None


def set_runtime(runtime: ReferenceRuntime) -> None:
    """Set the runtime that this process's references belong to; the last one counts."""
    global _runtime
    _runtime = runtime


def set_runtime_factory(join: Callable[[], object]) -> None:
    """Set what calls `set_runtime`, once a reference comes to this process."""
    global _runtime, _join
    _runtime, _join = None, join


def _marked(runtime: ReferenceRuntime, number: int) -> int:
    """Return a number with that of its session, unless it has one."""
    return number if number >> _OWN_BITS else runtime.session << _OWN_BITS | number


def _unmarked(runtime: ReferenceRuntime, number: int) -> int:
    """Return a number as it is within a session; one of another is unknown there, and stays."""
    return number % (1 << _OWN_BITS) if number >> _OWN_BITS == runtime.session else number


def _arrived(number: int) -> tuple[ReferenceRuntime, int]:
    """Take note of a reference that has come in; return what it is made of."""
    runtime = _current_runtime()
    number = _unmarked(runtime, number)
    runtime.on_received(number)
    return runtime, number


def _current_runtime() -> ReferenceRuntime:
    if _runtime is None and _join is not None:
        _join()
    if _runtime is None:
        raise RuntimeError(
            "a reference of dray's was unpickled in a process that belongs to no session"
        )
    return _runtime


class _Counted:
    """Something with a number that the hub keeps while somebody refers to it."""

    __slots__ = ("__weakref__", "number", "runtime")

    def __init__(self, runtime: ReferenceRuntime, number: int) -> None:
        self.runtime = runtime
        self.number = number

    @final
    def __del__(self) -> None:
        self.runtime.table.drop(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __copy__(self) -> _Counted:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> _Counted:
        return self.__copy__()

    def pickle_number(self) -> int:
        """Return the number, for somebody who will know it in another process."""
        if self.runtime is _runtime and note_reference(self):
            return self.number
        # Pickled by somebody else's pickler: nobody can say when it will be forgotten, or where.
        self.runtime.keep(self.number)
        return _marked(self.runtime, self.number)


class FunctionRef(_Counted):
    """A function or class with its options, which the hub knows as long as this is there.

    Attributes:
        key: The digest by which tasks and actors name it.
    """

    __slots__ = ("key",)

    def __init__(self, runtime: ReferenceRuntime, number: int, key: bytes) -> None:
        super().__init__(runtime, number)
        self.key = key


class ProcessRef(_Counted, ObjectRef):
    """A reference to an object of a session."""

    __slots__ = ()

    def binary(self) -> bytes:
        return self.number.to_bytes(16, "big")

    def future(self) -> Future[Any]:
        return self.runtime.future_of(self)

    def __await__(self) -> Generator[object, None, Any]:
        import asyncio  # slow to import; who awaits has it

        return asyncio.wrap_future(self.future()).__await__()

    def __reduce__(self) -> tuple[object, ...]:
        return (_arrived_ref, (self.pickle_number(),))


@shielded
def _arrived_ref(number: int) -> ProcessRef:
    return ProcessRef(*_arrived(number))


class ProcessGenerator(_Counted, ObjectRefGenerator):
    """The references of what a generator task yields."""

    __slots__ = ("_ended", "_handed_on", "_index", "_next")

    def __init__(self, runtime: ReferenceRuntime, number: int, index: int = 0) -> None:
        super().__init__(runtime, number)
        self._index = index
        self._next: ObjectRef | None = None  # looked at ahead
        self._ended = False
        self._handed_on = False

    @property
    def next_item(self) -> tuple[int, int]:
        """The stream, and the index of the item that comes next."""
        return self.number, self._index

    def _pass_by(self) -> None:
        """Let go of what was read; not of what somebody may read who was to have this generator."""
        if self._index and not self._handed_on:
            self.runtime.pass_by(self.number, self._index)

    def __next__(self) -> ObjectRef:
        self._pass_by()
        ref = self._next or self.runtime.next_item(self.number, self._index)
        self._next = None
        if ref is None:
            raise StopIteration
        self._index += 1
        return ref

    async def __anext__(self) -> ObjectRef:
        self._pass_by()
        ref: ObjectRef | None = self._next
        if ref is None:
            import asyncio

            ref = await asyncio.wrap_future(self.runtime.next_item_future(self.number, self._index))
        self._next = None
        if ref is None:
            raise StopAsyncIteration
        self._index += 1
        return ref

    def next_ready(self) -> bool:
        self._look_ahead()
        return self._next is not None

    def is_finished(self) -> bool:
        self._look_ahead()
        return self._ended

    def _look_ahead(self) -> None:
        if self._next is None and not self._ended and self.runtime.wait((self,), 1, 0, False)[0]:
            self._next = self.runtime.next_item(self.number, self._index)
            self._ended = self._next is None

    @shielded
    def completed(self) -> ObjectRef:
        self.runtime.on_received(self.number)
        return ProcessRef(self.runtime, self.number)

    @shielded
    def __copy__(self) -> ProcessGenerator:
        self._handed_on = True  # before its index is read, which another thread may move on
        self.runtime.on_received(self.number)
        return ProcessGenerator(self.runtime, self.number, self._index)

    def __reduce__(self) -> tuple[object, ...]:
        self._handed_on = True  # before its index is read, which another thread may move on
        return (_arrived_generator, (self.pickle_number(), self._index))


@shielded
def _arrived_generator(number: int, index: int) -> ProcessGenerator:
    return ProcessGenerator(*_arrived(number), index)


class ProcessActor(_Counted, ActorBackend):
    """An actor of a session."""

    def __init__(
        self,
        runtime: ReferenceRuntime,
        number: int,
        class_name: str,
        methods: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__(runtime, number)
        self.class_name = class_name
        self.methods = methods

    def bind(self, method: str, options: CallOptions) -> Submit:
        return self.runtime.bind_method(self, method, options)

    @property
    def actor_id(self) -> str:
        return f"{self.number:032x}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_arrived_actor, (self.pickle_number(), self.class_name, dict(self.methods)))


@shielded
def _arrived_actor(number: int, class_name: str, methods: Mapping[str, Any]) -> ProcessActor:
    return ProcessActor(*_arrived(number), class_name, methods)


class WeakActor(ProcessActor):
    """An actor as it knows itself, or was found by name: as on Ray, this does not keep it."""

    def __del__(self) -> None:
        """Nobody has counted it."""

    def __reduce__(self) -> tuple[object, ...]:
        number = _marked(self.runtime, self.number)
        return (_arrived_weak_actor, (number, self.class_name, dict(self.methods)))


def _arrived_weak_actor(number: int, class_name: str, methods: Mapping[str, Any]) -> WeakActor:
    runtime = _current_runtime()
    return WeakActor(runtime, _unmarked(runtime, number), class_name, methods)


@dataclass(eq=False)
class ProcessGroup(Group):
    """A placement group of a session; it lives until it is removed."""

    runtime: ReferenceRuntime
    number: int
    bundles: Sequence[Mapping[str, float]]
    _ready: ObjectRef | None

    @property
    def group_id(self) -> str:
        return f"{self.number:032x}"

    def ready(self) -> ObjectRef:
        if self._ready is None:
            self._ready = self.runtime.group_of(self.number).ready()
        return self._ready

    def wait(self, timeout_s: float | None) -> bool:
        ready, _ = self.runtime.wait([self.ready()], 1, timeout_s, False)
        if ready:
            self.runtime.get(ready, None)  # raises if it was removed
        return bool(ready)

    def remove(self) -> None:
        self.runtime.order("remove_group", self.number)

    def __reduce__(self) -> tuple[object, ...]:
        number = _marked(self.runtime, self.number)
        return (arrived_group, (number, [dict(b) for b in self.bundles], self._ready))


def arrived_group(
    number: int, bundles: Sequence[Mapping[str, float]], ready: ProcessRef | None = None
) -> ProcessGroup:
    """Return a group; it asks for what says that it is there where it has not come along."""
    runtime = _current_runtime()
    return ProcessGroup(runtime, _unmarked(runtime, number), bundles, ready)
