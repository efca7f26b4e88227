"""Objects in one process of a session: storing them, reading them, and waiting for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from dray.engines.launch import system_limits
from dray.engines.object_ref import ObjectRef
from dray.engines.process.client.conversation import Conversation, accepted
from dray.engines.process.objects.references import ProcessGenerator, ProcessRef
from dray.engines.process.objects.shared_memory import Arena, SpillFile, read_at, round_up
from dray.engines.rpc import serialization
from dray.engines.rpc.serialization import (
    INLINE_BYTES,
    SPILLED,
    STORED,
    Buffer,
    Opened,
    Packed,
    Payload,
    Stored,
    is_error,
    pack,
)
from dray.engines.runtime import OF_ENDED_SESSION, Runtime, not_in_time
from dray.errors import ObjectLostError, ObjectStoreFullError
from dray.interrupts import final, leave, mark_shielded, pending, shielded, watch


class Values(Conversation, Runtime):
    """Keeps and reads objects."""

    arena: Arena
    disk: SpillFile

    @abstractmethod
    def new_ref(self, number: int) -> ProcessRef:
        """Return a reference that has been counted here already."""

    @shielded
    def store(self, packed: Packed) -> Payload:
        """Return a payload for a value; large ones are written to shared memory."""
        if packed.size <= INLINE_BYTES:
            return packed.inline()
        parts: list[Buffer] = [packed.data, *packed.buffers]
        lengths = [len(part) for part in parts]
        place = self.demand("room", lengths)
        try:
            (self.arena if place[0] == STORED else self.disk).write(place[-1], parts)
        except OSError as error:
            self.say("no_room", place)
            raise ObjectStoreFullError(
                f"an object of {packed.size} bytes cannot be written: {error}. Drop references "
                "that you no longer need, free memory or space in the temporary directory, or "
                "set dray.init(object_store_memory=...) to less than the machine has"
            ) from error
        except BaseException:
            self.say("no_room", place)
            raise
        return (*place, lengths, tuple(packed.writable))

    def stored(self, packed: Packed | bytes) -> tuple[Payload, Sequence[int]]:
        """Return the payload of a value, and the references in it."""
        if isinstance(packed, bytes):
            return packed, ()
        return self.store(packed), [ref.number for ref in packed.refs]

    def load(self, payload: Payload) -> Any:
        """Return the value that a payload stands for.

        Raises:
            TaskError: It stands for an error, this or another.
        """
        if type(payload) is bytes:
            return serialization.unpack(payload)
        return serialization.unpack(*self.open(payload))

    def load_last(self, unread: list[Payload]) -> Any:
        """The same for the last of several payloads, which is taken from them."""
        return serialization.unpack(*self._open_last(unread))

    @shielded
    def _open_last(self, unread: list[Payload]) -> Opened:
        return self.open(unread.pop())

    @shielded
    def open(self, payload: Payload) -> Opened:
        """Return a pickle and what it refers to; nothing of it has to be given back."""
        if isinstance(payload, bytes):
            return payload, ()
        if payload[0] == serialization.INLINE:
            return serialization.open_inline(payload)
        if is_error(payload):
            raise serialization.error_of(payload)
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

    def _open_stored(self, payload: Stored) -> Opened:
        _, region, start, lengths, writable = payload
        end, arena, table = sum(map(round_up, lengths)), self.arena, self.table

        @final
        def unused() -> None:
            table.unpin(region)

        try:
            whole = arena.view(start, end, unused, writable=bool(writable))
        except BaseException as error:
            table.unpin(region)
            if isinstance(error, OSError):
                raise ObjectStoreFullError(system_limits.describe_map(error, arena.size)) from error
            raise
        view, offset, parts = memoryview(whole).cast("B"), 0, []
        for index, length in enumerate(lengths):
            part = view[offset : offset + length]
            parts.append(part if index - 1 in writable else part.toreadonly())
            offset += round_up(length)
        return parts[0], parts[1:]

    def open_all(self, payloads: Sequence[Payload]) -> list[bytes | Opened]:
        """Return pickles, each alone or with what it refers to."""
        opened: list[bytes | Opened] = []
        try:
            for payload in payloads:
                opened.append(payload if type(payload) is bytes else self.open(payload))
        except BaseException:
            self.return_unread(payloads[len(opened) + 1 :])
            raise
        return opened

    def return_unread(self, payloads: object) -> None:
        """Say that payloads which came too late are not looked at."""
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
        unpack = serialization.unpack
        return [unpack(it) if type(it) is bytes else unpack(*it) for it in opened]

    @mark_shielded
    def _fetch(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[bytes | Opened]:
        """Return pickles, each alone or with what it refers to."""
        numbers = [self._number_of(ref) for ref in refs]
        question, waiter = self.ask("fetch", numbers)
        self._wait_for(question, waiter, timeout_s, self.return_unread)
        answer = waiter.value
        if type(answer) is tuple:
            if answer[0] == "missing":
                raise not_in_time(answer[1], len(refs), timeout_s)
            raise serialization.error_of(answer)
        return self.open_all(answer)

    def _number_of(self, ref: Any) -> int:
        runtime = getattr(ref, "runtime", None)
        if runtime is not self:
            if isinstance(runtime, Conversation):
                runtime.refuse_forks()
            raise ObjectLostError(OF_ENDED_SESSION.format(ref))
        number: int = ref.number
        return number

    def put(self, value: object) -> ObjectRef:
        packed = pack(value, "the value")
        watch()
        try:
            return self._put(packed)
        finally:
            if pending:
                leave()

    @mark_shielded
    def _put(self, packed: Packed) -> ObjectRef:
        return self.put_payload(*self.stored(packed))

    @mark_shielded
    def put_payload(self, payload: Payload, nested: Sequence[int]) -> ObjectRef:
        """Return a reference to what a payload stands for, be it an error."""
        number = next(self._ids)
        self.post_new((number,), self.teller("put"), number, payload, nested)
        return self.new_ref(number)

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
                raise serialization.error_of(answer)
            return self.load(answer[0])

        number = self._number_of(ref)
        return self.promise(load, "fetch", [number], keep=ref, undo=self.return_unread)

    def _known_ref(self, number: int) -> ProcessRef:
        """Return a reference that the hub has counted for this process already."""
        self.keep(number)
        return self.new_ref(number)

    def _ref_of_item(self, answer: Any) -> ProcessRef | None:
        """Return a reference to the item that an answer names, if it does."""
        return self._known_ref(answer) if isinstance(answer, int) else None

    @shielded
    def next_item(self, stream: int, index: int) -> ObjectRef | None:
        number = self.await_answer("next", stream, index, undo=self._ref_of_item)
        return self._ref_of_item(number)

    def next_item_future(self, stream: int, index: int) -> Future[Any]:
        take = self._ref_of_item
        return self.promise(lambda answer: take(accepted(answer)), "next", stream, index, undo=take)

    @shielded
    def pass_by(self, stream: int, index: int) -> None:
        self.lock.do(self._tell_passed, stream, index)

    def _tell_passed(self, stream: int, index: int) -> None:
        if not self._closed and self.table.counts.get(stream) == 1:  # nothing else here reads it
            self.post(("passed", stream, index))
