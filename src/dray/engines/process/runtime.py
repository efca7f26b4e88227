"""Tasks, actors and objects as any process of a session sees them: it asks the hub.

The driver calls the hub, a worker sends it messages; what is said is the same (`hub.py` lists it).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dray.engines.interrupts import (
    final,
    leave,
    mark_shielded,
    pending,
    shielded,
    shut,
    watch,
)
from dray.engines.process import limits, packing, refs
from dray.engines.process.arena import Arena, DiskArena, read_at, round_up
from dray.engines.process.lock import HubLock, check_depth, has_depth
from dray.engines.process.packing import INLINE_BYTES, SPILLED, STORED, Packed, is_error, pack
from dray.engines.process.refs import ProcessActor, ProcessGenerator, ProcessGroup, ProcessRef
from dray.engines.process.turns import Turns, Waiter
from dray.engines.runtime import (
    ActorOptions,
    CallOptions,
    Group,
    ObjectRef,
    RemoteObject,
    Runtime,
    Submit,
    TaskOptions,
    warn_not_detached,
)
from dray.errors import (
    ConfigError,
    EngineError,
    GetTimeoutError,
    ObjectLostError,
    ObjectStoreFullError,
)
from dray.status import ProgramStatus

Message = tuple[Any, ...]


class ProcessRuntime(Runtime):
    """A process's half of the conversation with the hub.

    Args:
        number: The process's own number; what it makes is numbered after it.
        turns: How threads of this process wait for answers.
    """

    def __init__(self, number: int, turns: Turns) -> None:
        self._ids = itertools.count((number << 40) + 1)
        self._turns = turns
        self._asked: dict[int, Waiter] = {}
        self._questions = itertools.count(1)
        self._known: set[bytes] = set()
        self._pickled: weakref.WeakKeyDictionary[Any, Packed] = weakref.WeakKeyDictionary()
        self._closed = False
        self.lock = HubLock()
        self.table = refs.RefTable(self._tell, self.settle)
        refs.settle_in(self)

    # The conversation.

    @abstractmethod
    def post(self, message: Message) -> None:
        """Tells the hub something. With the lock held."""

    @property
    @abstractmethod
    def arena(self) -> Arena:
        """The shared memory."""

    @property
    @abstractmethod
    def disk(self) -> DiskArena:
        """Where objects are that are not in memory."""

    @abstractmethod
    def here(self) -> Mapping[str, Any]:
        """Returns what runs in the calling thread: its task, its actor and what they hold."""

    def _tell(self, what: str, number: int) -> None:
        if not self._closed:
            self.post((what, number))

    @shielded
    def meet(self, number: int) -> None:
        """Takes note of a reference that has come in."""
        if self.lock.is_mine():
            self.lock.later(lambda: self.table.met(number))
            return
        with self.lock:
            self.table.met(number)

    @shielded
    def keep(self, number: int) -> None:
        """Takes note of a reference, or of one more, that the hub has counted already."""
        if self.lock.is_mine():
            self.lock.later(lambda: self.table.born(number))
            return
        with self.lock:
            self.table.born(number)

    def say(self, *message: Any) -> None:
        """Tells the hub something, if it is still there."""
        watch()
        try:
            self._say(message)
        finally:
            if pending:
                leave()

    @mark_shielded
    def _say(self, message: Message) -> None:
        if self.lock.is_mine():  # a finaliser's
            self.lock.later(lambda: self.post(message))
            return
        with self.lock:
            if not self._closed:
                self.post(message)
        if self.table.dropped or self.table.unpinned:
            self.settle()

    def settle(self) -> None:
        """Deals with references that have died, unless whoever has the lock will."""
        table = self.table
        while (table.dropped or table.unpinned) and has_depth() and self.lock.acquire_now():
            try:
                table.settle()
            finally:
                self.lock.release()

    def ask(self, *message: Any) -> tuple[int, Waiter]:
        """Asks the hub something; the question's number is put behind the first word."""
        number, waiter = next(self._questions), Waiter()
        self._put_question(number, waiter, message)
        return number, waiter

    def _put_question(self, number: int, waiter: Waiter, message: Message) -> None:
        check_depth()
        self._asked[number] = waiter
        try:
            with self.lock:
                self.check_open()
                self.post((message[0], number, *message[1:]))
        except BaseException:
            self._asked.pop(number, None)
            raise

    def check_open(self) -> None:
        """Raises an EngineError if this session has ended. With the lock held."""
        if self._closed:
            raise EngineError("this session has ended; call dray.init() again")

    def answered(self, number: int, answer: Any) -> None:
        """Takes an answer of the hub's."""
        waiter = self._asked.pop(number, None)
        if waiter is None:
            return
        waiter.value = answer
        if isinstance(waiter, _FutureWaiter):
            self._turns.aside(waiter.resolve)
        else:
            self._turns.finish(waiter)

    @shielded
    def demand(self, *message: Any) -> Any:
        """Asks the hub something that it knows; returns what it answers, or raises that."""
        _, waiter = self.ask(*message)
        self._turns.wait(waiter, interruptible=False)
        return _accepted(waiter.value)

    def order(self, *message: Any) -> None:
        """The same for what has no answer but an error; a finaliser need not wait for that."""
        if self.lock.is_mine() or self._turns.reads_here():
            self.say(message[0], 0, *message[1:])
        else:
            self.demand(*message)

    @shielded
    def await_answer(self, *message: Any, undo: Callable[[Any], object] | None = None) -> Any:
        """The same for what may take long, and may be interrupted.

        Args:
            *message: The question.
            undo: Takes an answer that comes when nobody wants it any more.
        """
        question, waiter = self.ask(*message)
        self._wait_for(question, waiter, None, undo)
        return _accepted(waiter.value)

    def _wait_for(
        self,
        question: int,
        waiter: Waiter,
        timeout_s: float | None,
        undo: Callable[[Any], object] | None = None,
    ) -> None:
        """Waits for an answer; the hub says what there is when the time is up."""
        try:
            if not self._turns.wait(waiter, timeout_s):
                self._enough(question, waiter)
        except BaseException:  # a handler's, or the session ends
            if not self._closed:
                self._enough(question, waiter)
                if undo is not None:
                    undo(waiter.value)
            raise

    def _enough(self, question: int, waiter: Waiter) -> None:
        self.say("enough", question)
        self._turns.wait(waiter, interruptible=False)

    def end_waits(self, error: Callable[[], EngineError]) -> None:
        """Ends all that waits for an answer, in whatever thread, with an error.

        Args:
            error: Makes it.
        """
        self._turns.end(error)
        for number, waiter in list(self._asked.items()):
            if isinstance(waiter, _FutureWaiter) and self._asked.pop(number, None) is not None:
                waiter.fail(error())

    # Values.

    @shielded
    def store(self, packed: Packed) -> Any:
        """Returns a payload for a value; large ones are written to shared memory."""
        if packed.size <= INLINE_BYTES:
            return packed.inline()
        parts = [packed.data, *packed.buffers]
        lengths = [len(part) for part in parts]
        place = self.demand("room", lengths)
        try:
            (self.arena if place[0] == STORED else self.disk).write(place[-1], parts)
        except OSError as error:
            self.say("no_room", place)
            raise ObjectStoreFullError(
                f"an object of {packed.size} bytes cannot be written: {error}. Drop references to "
                "what is not needed, free memory or space in the temporary directory, or give "
                "dray.init(object_store_memory=...) less than there is"
            ) from error
        except BaseException:
            self.say("no_room", place)
            raise
        return (*place, lengths, tuple(packed.writable))

    def load(self, payload: Any) -> Any:
        """Returns the value that a payload stands for.

        Raises:
            TaskError: It stands for an error, this or another.
        """
        if type(payload) is bytes:
            return packing.unpack(payload)
        return packing.unpack(*self.open(payload))

    @shielded
    def open(self, payload: Any) -> tuple[Any, Sequence[Any]]:
        """Returns a pickle and what it refers to; nothing of it has to be given back."""
        if type(payload) is bytes:
            return payload, ()
        if payload[0] == packing.INLINE:
            return packing.open_inline(payload)
        if is_error(payload):
            raise packing.error_of(payload)
        if payload[0] == STORED:
            return self._open_stored(payload)
        try:
            _, offset, lengths, _ = payload
            parts = []
            for length in lengths:
                parts.append(read_at(self.disk.fd, offset, length))
                offset += round_up(length)
        finally:
            self.say("read", payload)
        return parts[0], parts[1:]

    def _open_stored(self, payload: Any) -> tuple[Any, Sequence[Any]]:
        _, region, start, lengths, writable = payload
        end, arena, table = sum(map(round_up, lengths)), self.arena, self.table

        @final
        def unused() -> None:
            if writable:
                arena.forget_changes(start, end)
            table.unpin(region)

        try:
            whole = arena.view(start, end, unused)
        except BaseException as error:
            table.unpin(region)
            if isinstance(error, OSError):
                raise ObjectStoreFullError(limits.describe_map(error, arena.size)) from error
            raise
        view, offset, parts = memoryview(whole).cast("B"), 0, []
        for index, length in enumerate(lengths):
            part = view[offset : offset + length]
            parts.append(part if index - 1 in writable else part.toreadonly())
            offset += round_up(length)
        return parts[0], parts[1:]

    def open_all(self, payloads: Sequence[Any]) -> list[Any]:
        """Returns pickles, each alone or with what it refers to."""
        opened: list[Any] = []
        try:
            for payload in payloads:
                opened.append(payload if type(payload) is bytes else self.open(payload))
        except BaseException:
            self.return_unread(payloads[len(opened) + 1 :])
            raise
        return opened

    def return_unread(self, payloads: Any) -> None:
        """Says that payloads which came too late are not looked at."""
        if type(payloads) is not list:
            return  # an error
        for payload in payloads:
            if type(payload) is tuple and payload[0] == STORED:
                self.table.unpin(payload[1])
            elif type(payload) is tuple and payload[0] == SPILLED:
                self.say("read", payload)

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        watch()
        try:
            opened = self._fetch(refs, timeout_s)
        finally:
            if pending:
                leave()
        unpack = packing.unpack
        return [unpack(it) if type(it) is bytes else unpack(*it) for it in opened]

    @mark_shielded
    def _fetch(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """Returns pickles, each alone or with what it refers to."""
        numbers = [self._number_of(ref) for ref in refs]
        question, waiter = self.ask("fetch", numbers)
        self._wait_for(question, waiter, timeout_s, self.return_unread)
        answer = waiter.value
        if type(answer) is tuple:
            if answer[0] == "missing":
                raise not_in_time(answer[1], len(refs), timeout_s)
            raise packing.error_of(answer)
        return self.open_all(answer)

    def _number_of(self, ref: Any) -> int:
        home = getattr(ref, "home", None)
        if home is not self:
            raise ObjectLostError(
                f"{ref!r} belongs to a session that has ended, and its value with it; make it "
                "again after dray.init()"
            )
        number: int = ref.number
        return number

    def put(self, value: Any) -> ObjectRef:
        packed = pack(value, "the value")
        watch()
        try:
            return self._put(packed)
        finally:
            if pending:
                leave()

    @mark_shielded
    def _put(self, packed: Packed) -> ObjectRef:
        plain = not packed.buffers and len(packed.data) <= INLINE_BYTES
        payload = packed.data if plain else self.store(packed)
        number = next(self._ids)
        self._post_new((number,), self.post, ("put", number, payload, packed.refs))
        return ProcessRef(self, number)

    def _post_new(
        self, numbers: Sequence[int], post: Callable[[Message], Any], message: Message
    ) -> Any:
        """Tells the hub of what has references here from now on; returns what `post` does."""
        check_depth()
        table, lock = self.table, self.lock
        if lock.is_mine():  # a finaliser's
            self.check_open()
            for made in numbers:
                table.counts[made] = 1
            lock.later(lambda: post(message))
            return None
        with lock:
            if self._closed:
                self.check_open()
            for made in numbers:
                table.counts[made] = 1
            try:
                answer = post(message)
            except BaseException:
                for made in numbers:
                    del table.counts[made]
                raise
        if table.dropped or table.unpinned:
            self.settle()
        return answer

    @shielded
    def wait(
        self, refs: Sequence[Any], num_returns: int, timeout_s: float | None, fetch: bool
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        numbers = [
            ref.next_item if isinstance(ref, ProcessGenerator) else self._number_of(ref)
            for ref in refs
        ]
        question, waiter = self.ask("wait", numbers, num_returns)
        self._wait_for(question, waiter, timeout_s)
        chosen = set(waiter.value[:num_returns])
        ready = [ref for index, ref in enumerate(refs) if index in chosen]
        return ready, [ref for index, ref in enumerate(refs) if index not in chosen]

    def future_of(self, ref: ProcessRef) -> Future[Any]:
        def load(answer: Any) -> Any:
            if type(answer) is tuple:
                raise packing.error_of(answer)
            return self.load(answer[0])

        return self.promise(load, "fetch", [self._number_of(ref)], keep=ref)

    def promise(
        self, load: Callable[[Any], Any], *message: Any, keep: object = None
    ) -> Future[Any]:
        """Asks the hub something; returns a future of what `load` makes of the answer."""
        return self.ask_later(load, *message, keep=keep)[1]

    @shielded
    def ask_later(
        self, load: Callable[[Any], Any], *message: Any, keep: object = None
    ) -> tuple[int, Future[Any]]:
        """The same as `promise`; returns the question's number as well."""
        self._turns.start_background("dray-answers")
        waiter = _FutureWaiter(load, keep)
        number = next(self._questions)
        self._put_question(number, waiter, message)
        if self.table.dropped or self.table.unpinned:
            self.settle()
        return number, waiter.future

    def give_back(self, question: int) -> None:
        """Says that what was reserved is needed no more, or that nobody waits for it any more."""
        self._asked.pop(question, None)
        self.say("return", question)

    def _new_ref(self, number: int) -> ProcessRef:
        """Returns a reference that the hub has counted for this process already."""
        self.keep(number)
        return ProcessRef(self, number)

    def _ref_of_item(self, number: int | None) -> ProcessRef | None:
        return None if number is None else self._new_ref(number)

    @shielded
    def next_item(self, stream: int, index: int) -> ObjectRef | None:
        number = self.await_answer("next", stream, index, undo=self._ref_of_item)
        return self._ref_of_item(number)

    def next_item_future(self, stream: int, index: int) -> Future[Any]:
        return self.promise(self._ref_of_item, "next", stream, index)

    # Tasks.

    def _kind(self, what: str, target: Any, options: Any, name: str) -> bytes:
        """Tells the hub of a function or class with its options, once; returns its key."""
        packed = self._pickled.get(target)
        if packed is None:
            packed = pack(target, name)
            self._pickled[target] = packed
        group = options.placement.group
        rest = {
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(options)
            if field.name not in ("given", "placement")
        }
        if "retry_exceptions" in rest:
            rest["retry_exceptions"] = packing.pack_types(rest["retry_exceptions"])
        if "methods" in rest:
            rest["methods"] = _with_types(packing.pack_types, rest["methods"])
        place = {
            field.name: getattr(options.placement, field.name)
            for field in dataclasses.fields(options.placement)
            if field.name != "group"
        }
        place["group"] = None if group is None else group.number
        here = self.here()
        if options.placement.kind == "default" and here.get("captures"):
            place.update(kind="group", group=here["group"], bundle=-1, capture=True)
        told = pack((rest, place), f"the options of {name}")
        key = hashlib.blake2b(packed.data + told.data, digest_size=16).digest()
        if key not in self._known:
            blob = (packed.data, [bytes(b) for b in packed.buffers])
            self.demand("kind", key, what, blob, packed.refs, rest, place)
            self._known.add(key)
        return key

    def bind_function(self, function: Callable[..., Any], options: TaskOptions) -> Submit:
        key = self._kind("task", function, options, options.name)
        returns, what = options.num_returns, f"an argument of {options.name}"
        return self._submit(("submit", key), returns, what)

    def bind_method(self, actor: ProcessActor, method: str, options: CallOptions) -> Submit:
        details = (
            method,
            options.name,
            options.concurrency_group,
            options.max_task_retries,
            packing.pack_types(options.retry_exceptions),
            options.most_unread,
        )
        what = f"an argument of {actor.class_name}.{method}"
        return self._submit(("call", actor.number, details), options.num_returns, what)

    def _submit(self, head: Message, returns: int | str, what: str) -> Submit:
        count: Any = "stream" if returns == "streaming" else returns
        ids = self._ids

        @mark_shielded
        def place(packed: Packed, deps: list[int]) -> Any:
            plain = not packed.buffers and len(packed.data) <= INLINE_BYTES
            payload = packed.data if plain else self.store(packed)
            number = next(ids)
            numbers: tuple[int, ...] = (number,)
            if isinstance(count, int) and count != 1:
                numbers = (number, *(next(ids) for _ in range(count - 1))) if count else ()
            parent = self.here().get("task_id")
            message = (*head, number, numbers, payload, deps, packed.refs, count, parent)
            refusal = self._post_new(numbers, self.submit_now, message)
            if refusal is not None:
                for made in numbers:
                    ProcessRef(self, made)  # its end is told
                raise packing.error_of(refusal)
            if count == 1 or count == "dynamic":
                return ProcessRef(self, number)
            if count == "stream":
                return ProcessGenerator(self, number)
            return [ProcessRef(self, made) for made in numbers] if count else None

        def submit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            packed, deps = self._pack_arguments(args, kwargs, what)
            watch()
            try:
                return place(packed, deps)
            finally:
                if pending:
                    leave()

        return submit

    def submit_now(self, message: Message) -> Any:
        """Tells the hub of a task or call; returns an error's payload if it refuses at once."""
        self.post(message)
        return None

    def _pack_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], what: str
    ) -> tuple[Packed, list[int]]:
        """Returns the arguments, and the references at the top, which are awaited."""
        deps: list[int] = []
        for value in args:
            if type(value) is ProcessRef:
                args = tuple(self._stand_in(value, deps) for value in args)
                break
        for value in kwargs.values():
            if type(value) is ProcessRef:
                kwargs = {name: self._stand_in(value, deps) for name, value in kwargs.items()}
                break
        return packing.pack_arguments(args, kwargs, what), deps

    def _stand_in(self, value: Any, deps: list[int]) -> Any:
        if type(value) is not ProcessRef:
            return value
        deps.append(self._number_of(value))
        return Awaited(len(deps) - 1)

    @shielded
    def cancel(self, ref: Any, *, force: bool, recursive: bool) -> None:
        message = ("cancel", self._number_of(ref), force, recursive)
        if self.lock.is_mine() or self._turns.reads_here():  # a finaliser's
            self.order(*message)
            return
        question, waiter = self.ask(*message)
        try:
            self._turns.wait(waiter)
        except BaseException:
            self._asked.pop(question, None)  # there is nothing to undo
            raise
        _accepted(waiter.value)

    # Actors.

    def bind_class(
        self, kind: type, options: ActorOptions
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], RemoteObject]:
        if options.detached:
            warn_not_detached(f"actor {options.class_name}", "process")
        key = self._kind("actor", kind, options, options.class_name)
        what = f"an argument of {options.class_name}"

        @shielded
        def place(packed: Packed, deps: list[int]) -> RemoteObject:
            payload = self.store(packed)
            number = next(self._ids)
            self.keep(number)
            actor = ProcessActor(self, number, options.class_name, options.methods)
            found = self.demand("create", key, number, payload, deps, packed.refs)
            return actor if found is None else self._actor(found)

        def create(args: tuple[Any, ...], kwargs: dict[str, Any]) -> RemoteObject:
            return place(*self._pack_arguments(args, kwargs, what))

        return create

    def _actor(self, found: tuple[int, str, Mapping[str, Any]]) -> ProcessActor:
        self.keep(found[0])
        number, class_name, methods = found
        return ProcessActor(self, number, class_name, _with_types(packing.types_of, methods))

    def kill(self, actor: Any, *, no_restart: bool) -> None:
        self.order("kill", self._number_of(actor), no_restart)

    @shielded
    def named_actor(self, name: str, namespace: str | None) -> RemoteObject | None:
        found = self.demand("named", name, namespace)
        return None if found is None else self._actor(found)

    def named_actors(self, all_namespaces: bool) -> list[dict[str, str]]:
        names: list[dict[str, str]] = self.demand("query", "names")
        return names

    @shielded
    def own_actor(self) -> RemoteObject | None:
        number = self.here().get("actor")
        return None if number is None else self._actor(self.demand("actor", number))

    # Placement groups.

    @shielded
    def make_group(
        self,
        bundles: Sequence[Mapping[str, float]],
        *,
        strategy: str,
        name: str,
        detached: bool,
        selectors: Sequence[Mapping[str, str]],
    ) -> Group:
        if detached:
            warn_not_detached(f"placement group {name!r}", "process")
        number, ready = next(self._ids), next(self._ids)
        self.keep(ready)
        ref = ProcessRef(self, ready)
        self.demand("group", number, ready, [dict(b) for b in bundles], strategy, name, selectors)
        return ProcessGroup(self, number, bundles, ref)

    def wait_for_group(self, group: ProcessGroup, timeout_s: float | None) -> bool:
        ready, _ = self.wait([group.ready()], 1, timeout_s, False)
        if ready:
            self.get(ready, None)  # raises if it was removed
        return bool(ready)

    def remove_group(self, group: ProcessGroup) -> None:
        self.order("remove_group", group.number)

    @shielded
    def named_group(self, name: str) -> Group | None:
        found = self.demand("named_group", name)
        return None if found is None else self._group(found)

    def _group(self, found: tuple[int, Any, int]) -> ProcessGroup:
        number, bundles, ready = found
        return ProcessGroup(self, number, bundles, self._new_ref(ready))

    @shielded
    def group_of(self, number: int) -> ProcessGroup:
        """Returns the group of that number."""
        return self._group(self.demand("group_of", number))

    def groups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.demand("query", "groups")
        return found

    # What there is.

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.demand("query", "nodes")
        return found

    def cluster_resources(self) -> dict[str, float]:
        found: dict[str, float] = self.demand("query", "total")
        return found

    def available_resources(self) -> dict[str, float]:
        found: dict[str, float] = self.demand("query", "available")
        return found

    def status(self) -> ProgramStatus:
        found: ProgramStatus = self.demand("query", "status")
        return found

    def exit_actor(self) -> None:
        if self.here().get("actor") is None:
            raise ConfigError("exit_actor() works only inside an actor's method")
        raise ActorExit


def _with_types(
    convert: Callable[[Any], Any], methods: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return methods' options with the types of exceptions packed, or unpacked."""
    name = "retry_exceptions"
    return {
        method: {**given, name: convert(given[name])} if name in given else given
        for method, given in methods.items()
    }


def _accepted(answer: Any) -> Any:
    """Returns an answer; raises the error that it may be."""
    if type(answer) is tuple and answer and answer[0] == "refused":
        raise packing.error_of(answer[1])
    return answer


def not_in_time(missing: int, count: int, timeout_s: float | None) -> GetTimeoutError:
    """Returns the error of a `get` that has waited for long enough."""
    return GetTimeoutError(
        f"{missing} of {count} values were not there after {timeout_s:g} s; wait longer, or use "
        "dray.wait() to take those that are ready"
    )


class Awaited:
    """Stands, among a call's arguments, for the value of one of its references."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[object, ...]:
        return (Awaited, (self.index,))


class ActorExit(BaseException):
    """Raised by `exit_actor`; not an Exception, so that users' handlers let it pass."""


class _FutureWaiter(Waiter):
    """A waiter that no thread waits for: its answer goes into a future."""

    __slots__ = ("_kept", "_load", "future")

    def __init__(self, load: Callable[[Any], Any], keep: object) -> None:
        super().__init__()
        self._load = load
        self._kept = keep  # the reference: without it the value would go as it comes
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()

    @shut
    def resolve(self) -> None:
        """Sets the future."""
        try:
            value = self._load(self.value)
        except BaseException as error:  # noqa: BLE001 (it belongs to whoever waits)
            self.future.set_exception(error)
        else:
            self.future.set_result(value)
        self._kept = None

    @shut
    def fail(self, error: EngineError) -> None:
        """Sets the future to an error."""
        self.future.set_exception(error)
        self._kept = None
