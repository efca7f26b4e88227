"""The hub: the only place, in the driver, that knows every object, task, actor and worker.

There is no daemon and no second copy of any state. Each part of the hub keeps one kind of thing,
and is made after the parts that it uses:

    hub.py               objects, the processes that hold them, and answers
    generators.py        streams of items
    functions.py         functions and classes, and the scheduling class of each
    lookahead.py         short tasks that are sent ahead, and recalled
    task_table.py        tasks and calls that have not ended: what they wait for, and what they hold
    tasks.py             tasks, from their queue over a worker to the results
    actors.py            actors, and the order of their calls
    placement_groups.py  bundles that are set aside
    orphans.py           tasks and actors of a lost process that nothing else refers to
    waits.py             questions that wait for any of these
    leases.py            resources for engines inside workers
    lost_nodes.py        work that waits for simulated nodes that are gone
    status.py            all of it, for people
    timeline.py          when tasks and calls have run, if that is asked for
    stalls.py            detection of work that waits for resources which nothing will free

`protocol.py` lists the messages of processes; `driver.py` carries them here and back.

The rest of the code relies on these invariants:

- One lock (`lock.py`) guards everything, and no code waits while it is held. If a question cannot
  be answered yet, the code that makes the answer available answers it later. Callbacks of the
  ledger, of futures and of finalisers are put into the lock's queue and run when it is released, so
  no thread ever enters a part of the hub twice.
- Replies to the driver are given when the lock is free again, since its threads may wake and enter
  the hub. A worker's reply is only written to its socket, which never blocks.
- An object lives while its count is above 0. A process counts once, however many references it has
  (`Client.holds`). Each argument of a task counts once, and so does each reference in the value of
  an object. The sender of a reference holds it until the receiver is known to hold it: a task holds
  its arguments, a value its references, and `give` counts for a process before it hears of the
  object.
- The `Client` of a process records all that the process can take: references, regions of memory
  that it has mapped, memory it was given, files it reads, leases, questions. When the process ends,
  for whatever reason, `forget_client` returns exactly these. So nothing leaks, and no other code
  has to clean up.
- Messages of one process arrive in the order in which it sent them. The last messages of a dead
  worker are read before its end is handled, so a result that was sent counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from dray.engines.process.hub.records import Client, Room
from dray.engines.process.lock import HubLock
from dray.engines.process.objects.store import Store
from dray.engines.rpc.serialization import SPILLED, STORED, Payload, failed
from dray.errors import DrayError
from dray.scheduling.requests import Reservation


class Hub:
    """Objects and questions; `tasks.py`, `actors.py` and `placement_groups.py` add the rest."""

    def __init__(self, store_bytes: int) -> None:
        self.lock = HubLock()
        self.store = Store(store_bytes)
        self.clients: dict[int, Client] = {}

    def reply(self, client: Client, question: int, answer: object) -> None:
        if client.number:
            client.reply(question, answer)
        else:  # the driver, whose threads may wake and come in here
            self.lock.replies.append((client, question, answer))

    def refuse(self, client: Client, question: int, error: DrayError) -> None:
        self.reply(client, question, ("refused", failed(error)))

    def when_granted(
        self, asked: Future[Reservation], then: Callable[[Reservation], object]
    ) -> None:
        """Call back, with the lock held, once a request is met; not if it was taken back."""

        def met(_: Future[Reservation]) -> None:
            if not asked.cancelled():
                self.lock.later(lambda: then(asked.result()))

        asked.add_done_callback(met)

    # References.

    def own(self, client: Client, numbers: Sequence[int]) -> None:
        """Begin objects that a process holds from their beginning."""
        client.holds.update(numbers)
        for number in numbers:
            self.store.add(number)

    def give(self, client: Client, number: int) -> None:
        """Have a process hold an object whose reference it is about to get."""
        if number not in client.holds:
            client.holds.add(number)
            self.store.hold(number)

    def is_only_holder(self, client: Client, number: int) -> bool:
        return number in client.holds and self.store.find(number).holds == 1

    def on_hold(self, client: Client, number: int) -> None:
        if number not in client.holds and self.store.exists(number):
            client.holds.add(number)
            self.store.hold(number)

    def on_drop(self, client: Client, number: int) -> None:
        if number in client.holds:
            client.holds.discard(number)
            self.store.drop(number)

    def on_leave(self, client: Client) -> None:
        client.leaves = True

    def forget_client(self, client: Client) -> None:
        """Take back all that a process that is gone has held."""
        self.clients.pop(client.number, None)
        client.gone = True
        for give_up in list(client.questions.values()):
            give_up()
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

    def pin_for(self, client: Client, payload: Payload | None) -> Payload | None:
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
        count = client.pins.get(region, 0)
        if count:
            client.pins[region] = count - 1
            if count == 1:
                del client.pins[region]
            self.store.unpin(region)

    def on_read(self, client: Client, payload: Payload) -> None:
        for known in client.reading:
            if known[1] == payload[1]:
                client.reading.remove(known)
                self.store.unpin_disk(known)
                return

    def on_room(self, client: Client, question: int, lengths: Sequence[int]) -> None:
        try:
            place = self.store.room(lengths)
        except DrayError as error:
            self.refuse(client, question, error)
            return
        client.rooms[place] = lengths
        self.reply(client, question, place)

    def on_no_room(self, client: Client, place: Room) -> None:
        lengths = client.rooms.pop(place, None)
        if lengths is not None:
            self.store.forget_room(place, lengths)

    def arrived(self, client: Client, payload: Payload) -> Payload:
        """Take note that what a process has written is now in use."""
        if type(payload) is tuple and payload[0] in (STORED, SPILLED):
            client.rooms.pop(payload[:-2], None)
        return payload

    def free_room(self, client: Client, payload: Payload) -> None:
        """Free what a process has written and nobody has use for."""
        if type(payload) is tuple and payload[0] in (STORED, SPILLED):
            self.on_no_room(client, payload[:-2])

    def on_put(self, client: Client, number: int, payload: Payload, nested: Sequence[int]) -> None:
        self.own(client, (number,))
        self.store.seal(number, self.arrived(client, payload), nested)

    def fail(self, numbers: Sequence[int], payload: Payload, nested: Sequence[int] = ()) -> None:
        """Give objects an error in place of their values, and what it refers to."""
        for number in numbers:
            self.store.seal(number, payload, nested)


def _release_granted(future: Future[Reservation]) -> None:
    if future.exception() is None:
        future.result().release()
