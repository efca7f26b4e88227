"""The hub: the one place, in the driver, that knows every object, task, actor and worker.

Processes tell it things and ask it things, in tuples whose first word names a method `on_...` here.
It never waits: what cannot be answered yet is answered later. One lock guards all of it; replies
are given when the lock is free again, and so is what other parts of dray call back about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from dray.engines.process.hub.records import Client, WaitRequest
from dray.engines.process.lock import HubLock
from dray.engines.process.objects.store import Store
from dray.engines.rpc.serialization import SPILLED, STORED, failed, is_error
from dray.errors import DrayError
from dray.scheduling.requests import Reservation


class Hub:
    """Objects and questions; `tasks.py`, `actors.py` and `placement_groups.py` add the rest.

    Args:
        store_bytes: How much memory large objects may take.
    """

    def __init__(self, store_bytes: int) -> None:
        self.lock = HubLock()
        self.store = Store(store_bytes)
        self.clients: dict[int, Client] = {}
        # Set by `tasks.py`: a worker's task waits for others' work, and goes on.
        self.when_blocked: Callable[[Client], None] = lambda client: None
        self.when_unblocked: Callable[[Client], None] = lambda client: None
        self._operations: dict[str, Callable[..., Any]] = {}

        # Set by `generators.py`: whether a stream has an item or has ended, and a call when it has.
        self.has_item: Callable[[int, int], bool]
        self.when_item: Callable[[int, int, Callable[[], None]], None]
        self.forget_item: Callable[[int, Callable[[], None]], None]
        self.serve(self)

    def serve(self, part: object) -> None:
        """Let processes call the `on_...` methods of an object."""
        for name in dir(part):
            if name.startswith("on_"):
                self._operations[name[3:]] = getattr(part, name)

    def handle(self, client: Client, message: tuple[Any, ...]) -> Any:
        """Do what a process says. With the lock held."""
        return self._operations[message[0]](client, *message[1:])

    def reply(self, client: Client, question: int, answer: Any) -> None:
        """Answer a question."""
        if client.number:
            client.reply(question, answer)
        else:  # the driver, whose threads may wake and come in here
            self.lock.replies.append((client, question, answer))

    def refuse(self, client: Client, question: int, error: DrayError) -> None:
        """Answer a question with an error."""
        self.reply(client, question, ("refused", failed(error)))

    # References.

    def own(self, client: Client, number: int) -> None:
        """Begin an object that a process holds from its beginning."""
        self.store.add(number)
        client.holds.add(number)

    def give(self, client: Client, number: int) -> None:
        """Have a process hold an object whose reference it is about to get."""
        if number not in client.holds:
            client.holds.add(number)
            self.store.hold(number)

    def on_hold(self, client: Client, number: int) -> None:
        """A reference has come to a process that had none."""
        if number not in client.holds and self.store.exists(number):
            client.holds.add(number)
            self.store.hold(number)

    def on_drop(self, client: Client, number: int) -> None:
        """A process's last reference has died."""
        if number in client.holds:
            client.holds.discard(number)
            self.store.drop(number)

    def forget_client(self, client: Client) -> None:
        """Take back all that a process that is gone has held."""
        self.clients.pop(client.number, None)
        client.questions.clear()
        for question in list(client.leases):
            self.give_back(client, question)
        for region, count in client.pins.items():
            for _ in range(count):
                self.store.unpin(region)
        client.pins.clear()
        for place, lengths in client.rooms.items():
            self.store.forget_room(place, lengths)
        client.rooms.clear()
        for payload in client.reading:
            self.store.unpin_disk(payload)
        client.reading.clear()
        holds, client.holds = client.holds, set()
        for number in holds:
            self.store.drop(number)

    def give_back(self, client: Client, question: int) -> None:
        """Take back what a process has reserved, or asked for."""
        future = client.leases.pop(question, None)
        if future is not None and not future.cancel():
            # The ledger may be about to grant it, in this very thread: it cannot be waited for.
            future.add_done_callback(_release_granted)

    # Values.

    def hand_out(self, client: Client, payload: Any) -> Any:
        """Take note that a process is given a payload, and so may look into shared memory."""
        if type(payload) is tuple:
            if payload[0] == STORED:
                self.store.pin(payload[1])
                client.pins[payload[1]] = client.pins.get(payload[1], 0) + 1
            elif payload[0] == SPILLED:
                self.store.pin_disk(payload)
                client.reading.append(payload)
        return payload

    def on_unpin(self, client: Client, region: int) -> None:
        """A process looks into a region no more."""
        count = client.pins.get(region, 0)
        if count:
            client.pins[region] = count - 1
            if count == 1:
                del client.pins[region]
            self.store.unpin(region)

    def on_read(self, client: Client, payload: tuple[Any, ...]) -> None:
        """A process has read an object from the disk."""
        for known in client.reading:
            if known[1] == payload[1]:
                client.reading.remove(known)
                self.store.unpin_disk(known)
                return

    def on_room(self, client: Client, question: int, lengths: Sequence[int]) -> None:
        """A process is about to write an object."""
        try:
            place = self.store.room(lengths)
        except DrayError as error:
            self.refuse(client, question, error)
            return
        client.rooms[place] = lengths
        self.reply(client, question, place)

    def on_no_room(self, client: Client, place: tuple[Any, ...]) -> None:
        """A process writes nothing to the room that it got."""
        lengths = client.rooms.pop(place, None)
        if lengths is not None:
            self.store.forget_room(place, lengths)

    def arrived(self, client: Client, payload: Any) -> Any:
        """Take note that what a process has written is now in use."""
        if type(payload) is tuple and payload[0] in (STORED, SPILLED):
            client.rooms.pop(payload[:-2], None)
        return payload

    def free_room(self, client: Client, payload: Any) -> None:
        """Free what a process has written and nobody has use for."""
        if type(payload) is tuple and payload[0] in (STORED, SPILLED):
            self.on_no_room(client, payload[:-2])

    def on_put(self, client: Client, number: int, payload: Any, nested: Sequence[int]) -> None:
        """A process stores a value."""
        self.own(client, number)
        self.store.seal(number, self.arrived(client, payload), nested)

    # Waiting.

    def ask_until(
        self, client: Client, question: int, give_up: Callable[[], None]
    ) -> Callable[[], bool]:
        """Have a process wait, until it says that it is enough or what is returned is called.

        Args:
            client: The process.
            question: What it has asked.
            give_up: Called when it waits no longer; answers it.

        Returns:
            What ends the wait; it returns False if nobody waits any more.
        """

        def end() -> bool:
            if client.questions.pop(question, None) is None:
                return False
            self.unblock(client)
            return True

        def enough() -> None:
            if end():
                give_up()

        client.questions[question] = enough
        self.block(client)
        return end

    def on_fetch(self, client: Client, question: int, numbers: Sequence[int]) -> None:
        """A process wants values."""
        self._gather(WaitRequest(client, question, numbers, len(numbers), True))

    def on_wait(self, client: Client, question: int, numbers: Sequence[int], need: int) -> None:
        """A process wants to know when so many values are there."""
        self._gather(WaitRequest(client, question, numbers, need, False))

    def _gather(self, gather: WaitRequest) -> None:
        missing = []
        for number in gather.numbers:
            payload = self._payload(number)
            if payload is None:
                missing.append(number)
            else:
                gather.ready += 1
                if gather.wants_values and is_error(payload):
                    self.reply(gather.client, gather.question, payload)
                    return
        if gather.ready >= gather.need:
            self._answer(gather)
            return
        client = gather.client
        client.questions[gather.question] = gather
        for number in missing:
            came = functools.partial(self._came, gather, number)
            gather.calls.append((number, came))
            self._when_ready(number, came)
        gather.blocks = True
        self.block(client)

    def _payload(self, number: Any) -> Any:
        """Return an object's payload; of a stream's item only whether it is there."""
        if type(number) is tuple:
            stream, index = number
            return self.has_item(stream, index) or None
        return self.store.find(number).payload

    def _when_ready(self, number: Any, callback: Callable[[], None]) -> None:
        if type(number) is tuple:
            stream, index = number
            self.when_item(stream, index, callback)
        else:
            self.store.when_ready(number, callback)

    def _forget_call(self, number: Any, callback: Callable[[], None]) -> None:
        if type(number) is tuple:
            self.forget_item(number[0], callback)
        else:
            self.store.forget_call(number, callback)

    def block(self, client: Client) -> None:
        """A process begins to wait; a task that waits lets others use its CPUs."""
        client.blocked += 1
        if client.blocked == 1 and client.worker is not None:
            self.when_blocked(client)

    def unblock(self, client: Client) -> None:
        """A process has what it waited for."""
        client.blocked -= 1
        if client.blocked == 0 and client.worker is not None:
            self.when_unblocked(client)

    def _came(self, gather: WaitRequest, number: int) -> None:
        if gather.question not in gather.client.questions:
            return
        gather.ready += 1
        if gather.wants_values:
            payload = self.store.find(number).payload
            if is_error(payload):
                self._end(gather)
                self.reply(gather.client, gather.question, payload)
                return
        if gather.ready >= gather.need:
            self._end(gather)
            self._answer(gather)

    def _end(self, gather: WaitRequest) -> None:
        client = gather.client
        client.questions.pop(gather.question, None)
        calls, gather.calls = gather.calls, []
        if gather.ready < len(gather.numbers):  # who asks again and again leaves nothing behind
            for number, came in calls:
                self._forget_call(number, came)
        if gather.blocks:
            gather.blocks = False
            self.unblock(client)

    def _answer(self, gather: WaitRequest) -> None:
        find, client = self.store.find, gather.client
        if gather.wants_values:
            payloads = [self.hand_out(client, find(number).payload) for number in gather.numbers]
            self.reply(client, gather.question, payloads)
            return
        ready = [i for i, n in enumerate(gather.numbers) if self._payload(n) is not None]
        self.reply(client, gather.question, ready)

    def on_enough(self, client: Client, question: int) -> None:
        """A process waits no longer."""
        gather = client.questions.get(question)
        if gather is None:
            return  # the answer is on its way
        if not isinstance(gather, WaitRequest):
            gather()
            return
        self._end(gather)
        if gather.wants_values:
            missing = len(gather.numbers) - gather.ready
            self.reply(client, question, ("missing", missing))
        else:
            self._answer(gather)

    def fail(self, numbers: Sequence[int], payload: Any) -> None:
        """Give objects an error in place of their values."""
        for number in numbers:
            self.store.seal(number, payload)


def _release_granted(future: Future[Reservation]) -> None:
    if future.exception() is None:
        future.result().release()
