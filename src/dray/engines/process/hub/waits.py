"""Waiting in the hub: for values, for items of streams, and for a stream's readers.

A process asks a question. The hub answers it when enough values are there, or when the process
sends `enough`, because its time is up or a signal handler has to run. So every question is answered
exactly once, and a late `enough` needs no error. Objects and streams call back once when a value is
there. The callback is removed together with its question, so that repeated questions leave nothing
behind. While a task waits, other tasks may use its CPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal

from dray.engines.process.hub.generators import Streams
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client, Item, WaitRequest
from dray.engines.process.hub.tasks import Tasks
from dray.engines.rpc.serialization import Payload, is_error
from dray.errors import ObjectLostError


class Waits:
    """The questions that are not answered yet."""

    def __init__(self, hub: Hub, streams: Streams, tasks: Tasks) -> None:
        self._hub = hub
        self._streams = streams
        self._tasks = tasks

    def on_fetch(self, client: Client, question: int, numbers: Sequence[int]) -> None:
        self._gather(WaitRequest(client, question, numbers, len(numbers), True))

    def on_wait(
        self, client: Client, question: int, numbers: Sequence[int | Item], need: int
    ) -> None:
        self._gather(WaitRequest(client, question, numbers, need, False))

    def on_next(self, client: Client, question: int, number: int, index: int) -> None:
        if not self._streams.exists(number):
            error = ObjectLostError("the generator is of another session; call its function again")
            self._hub.refuse(client, question, error)
            return

        def give() -> None:
            self._hub.reply(client, question, self._streams.take(client, number, index))

        if self._streams.has_item(number, index):
            give()
            return

        def came() -> None:
            if end():
                give()

        def give_up() -> None:
            self._streams.forget_item(number, came)
            self._hub.reply(client, question, None)

        end = self._ask_until(client, question, give_up)
        self._streams.when_item(number, index, came)

    def on_pace(self, client: Client, question: int, number: int, count: int) -> None:
        def answer() -> None:
            self._hub.reply(client, question, None)

        def go_on() -> None:
            if end():
                answer()

        if self._streams.is_read(number, count):
            answer()
            return
        end = self._ask_until(client, question, answer)
        self._streams.when_read(number, count, go_on)

    def on_lend(self, client: Client, question: int) -> None:
        self._ask_until(client, question, lambda: self._hub.reply(client, question, None))

    def _ask_until(
        self, client: Client, question: int, give_up: Callable[[], None]
    ) -> Callable[[], bool]:
        """Have a process wait, until it says that it is enough or what is returned is called.

        Args:
            give_up: Called when it waits no longer; answers it.

        Returns:
            What ends the wait; it returns False if nobody waits any more.
        """

        def end() -> bool:
            if client.questions.pop(question, None) is None:
                return False
            self._unblock(client, turn)
            return True

        def enough() -> None:
            if end():
                give_up()

        client.questions[question] = enough
        turn = self._block(client)
        return end

    def on_wait_over(self, client: Client, question: int) -> None:
        enough = client.questions.get(question)
        if enough is not None:  # or the answer is on its way
            enough()

    # A wait for several objects.

    def _gather(self, gather: WaitRequest) -> None:
        find, missing = self._hub.store.find, []
        for number in gather.numbers:
            payload = find(number).payload if type(number) is int else self._payload(number)
            if payload is None:
                missing.append(number)
            else:
                gather.ready += 1
                if gather.wants_values and is_error(payload):
                    self._hub.reply(gather.client, gather.question, payload)
                    return
        if gather.ready >= gather.need:
            self._answer(gather)
            return
        client = gather.client
        client.questions[gather.question] = functools.partial(self._enough, gather)
        came = gather.came = functools.partial(self._came, gather)
        for number in missing:
            if isinstance(number, int):
                self._hub.store.when_ready(number, came)
            else:
                gather.items.append((number, functools.partial(came, number)))
                self._streams.when_item(*number, gather.items[-1][1])
        gather.blocked_in = self._block(client)

    def _payload(self, number: int | Item) -> Payload | Literal[True] | None:
        """Return an object's payload; of a stream's item only whether it is there."""
        if isinstance(number, tuple):
            return self._streams.has_item(*number) or None
        return self._hub.store.find(number).payload

    def _forget_calls(self, gather: WaitRequest) -> None:
        """Have nothing call back any more that is not there yet."""
        for number in gather.numbers:
            if isinstance(number, int) and gather.came is not None:
                self._hub.store.forget_call(number, gather.came)
        for item, came in gather.items:
            self._streams.forget_item(item[0], came)

    def _came(self, gather: WaitRequest, number: int | Item) -> None:
        if gather.question not in gather.client.questions:
            return
        gather.ready += 1
        if gather.wants_values and isinstance(number, int):
            payload = self._hub.store.find(number).payload
            if is_error(payload):
                self._end(gather)
                self._hub.reply(gather.client, gather.question, payload)
                return
        if gather.ready >= gather.need:
            self._end(gather)
            self._answer(gather)

    def _end(self, gather: WaitRequest) -> None:
        client = gather.client
        client.questions.pop(gather.question, None)
        if gather.ready < len(gather.numbers):
            self._forget_calls(gather)
        turn, gather.blocked_in = gather.blocked_in, None
        if turn is not None:
            self._unblock(client, turn)

    def _answer(self, gather: WaitRequest) -> None:
        client = gather.client
        if gather.wants_values:
            find, pin_for = self._hub.store.find, self._hub.pin_for
            found = [find(n).payload for n in gather.numbers if isinstance(n, int)]
            payloads = [p if type(p) is bytes else pin_for(client, p) for p in found]
            self._hub.reply(client, gather.question, payloads)
            return
        ready = [i for i, n in enumerate(gather.numbers) if self._payload(n) is not None]
        self._hub.reply(client, gather.question, ready)

    def _enough(self, gather: WaitRequest) -> None:
        """Answer a process that waits no longer."""
        self._end(gather)
        if gather.wants_values:
            missing = len(gather.numbers) - gather.ready
            self._hub.reply(gather.client, gather.question, ("missing", missing))
        else:
            self._answer(gather)

    # Others work meanwhile.

    def _block(self, client: Client) -> int:
        client.blocked += 1
        if client.blocked == 1 and client.worker is not None:
            self._tasks.release_cpus(client.worker)
        return client.turn

    def _unblock(self, client: Client, turn: int) -> None:
        if turn != client.turn:
            return
        client.blocked -= 1
        if client.blocked == 0 and client.worker is not None:
            self._tasks.reacquire_cpus(client.worker)
