"""The protocol of the hub, the wire of tasks and actors: its operations, and what workers hear.

A message is a tuple: a word and its arguments. The word `hold` leads to `on_hold` here, whose first
argument is the process that speaks. An operation with a `question` is answered, with ("answer",
question, answer), now or later; an answer ("refused", error) raises where it is waited for. All
others are never answered. The driver's own thread calls the same operations without a socket
between, and `submit` and `call` return to it. All of them run with the hub's lock held.

A worker hears, besides answers:

    ("begin", environment)                   once, before anything else
    ("kind", key, what, blob, info)          a function or class, before its first use there
    ("forget", keys)                         some that are not used any more
    ("run", grant, *job)                     a task, with the accelerators it has
    ("make", details, *job)                  the actor that will live in it
    ("call", *job)                           a method of its actor
    ("stop",)                                the end

where job is `number, key, payload, deps, returns, details`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from dray.engines.process.hub.records import CallDetails, Client, Count, Item, Room
from dray.engines.rpc.serialization import Payload
from dray.engines.runtime import GroupSpec
from dray.scheduling.requests import Request


class ObjectOperations(Protocol):
    """References and values: `hub.py`."""

    def on_hold(self, client: Client, number: int) -> None:
        """Note that a reference has come to a process that had none."""

    def on_drop(self, client: Client, number: int) -> None:
        """Note that a process's last reference has died."""

    def on_put(self, client: Client, number: int, payload: Payload, nested: Sequence[int]) -> None:
        """Store a value."""

    def on_room(self, client: Client, question: int, lengths: Sequence[int]) -> None:
        """Answer with room for an object that a process is about to write."""

    def on_no_room(self, client: Client, place: Room) -> None:
        """Take back room to which a process writes nothing."""

    def on_unpin(self, client: Client, region: int) -> None:
        """Note that a process looks into a region no more."""

    def on_read(self, client: Client, payload: Payload) -> None:
        """Note that a process has read an object from the disk."""


class WaitOperations(Protocol):
    """Waiting for values, for items and for readers: `waits.py`."""

    def on_fetch(self, client: Client, question: int, numbers: Sequence[int]) -> None:
        """Answer with values when all are there, or with the first error."""

    def on_wait(
        self, client: Client, question: int, numbers: Sequence[int | Item], need: int
    ) -> None:
        """Answer with the indices of what is there, when so many are."""

    def on_next(self, client: Client, question: int, number: int, index: int) -> None:
        """Answer with the reference of a stream's item; None is the stream's end."""

    def on_pace(self, client: Client, question: int, number: int, count: int) -> None:
        """Answer a generator when so many of its items have been read."""

    def on_lend(self, client: Client, question: int) -> None:
        """Let others use a process's CPUs until it waits no longer."""

    def on_wait_over(self, client: Client, question: int) -> None:
        """Answer a question of these with what there is: its process waits no longer."""


class KindOperations(Protocol):
    """Functions and classes: `functions.py`."""

    def on_kind(
        self,
        client: Client,
        question: int,
        key: bytes,
        number: int,
        what: Literal["task", "actor"],
        blob: tuple[bytes, list[bytes]],
        nested: Sequence[int],
        options: Mapping[str, Any],
        place: Mapping[str, Any],
    ) -> None:
        """Note a function or class, by the digest of its pickle and its options.

        It is known as long as somebody holds an object of that number, or it has tasks.
        """


class TaskOperations(Protocol):
    """Tasks, and results of tasks and calls alike: `tasks.py`."""

    def on_submit(
        self,
        client: Client,
        key: bytes,
        number: int,
        numbers: Sequence[int],
        payload: Payload,
        deps: Sequence[int],
        nested: Sequence[int],
        returns: Count,
        parent: int | None,
    ) -> None:
        """Take a task of this kind, with its number, those of its results, and its arguments."""

    def on_done(
        self, client: Client, number: int, values: Sequence[tuple[Payload, Sequence[int]]]
    ) -> None:
        """Take the results of a task or call that has returned."""

    def on_raised(
        self,
        client: Client,
        number: int,
        payload: Payload,
        nested: Sequence[int],
        retriable: bool,
        values: Sequence[tuple[Payload, Sequence[int]]],
    ) -> None:
        """Take the error of a task or call, what it refers to, and the results before it."""

    def on_cancel(
        self, client: Client, question: int, number: int, force: bool, recursive: bool
    ) -> None:
        """Cancel the task or call of a result."""

    def on_recalled(self, client: Client, dispatch: int, given_back: bool) -> None:
        """Note whether a worker has given back a task that was sent ahead."""

    def on_cancel_acknowledged(self, client: Client, number: int) -> None:
        """Note that a worker knows that a call is cancelled."""


class StreamOperations(Protocol):
    """Streams: `generators.py`."""

    def on_item(
        self,
        client: Client,
        task_number: int,
        index: int,
        number: int,
        payload: Payload,
        nested: Sequence[int],
    ) -> None:
        """Take what a generator has yielded."""

    def on_passed(self, client: Client, number: int, index: int) -> None:
        """Note that a process's only reader of a stream has no use for items before this one."""


class ActorOperations(Protocol):
    """Actors: `actors.py`."""

    def on_create(
        self,
        client: Client,
        question: int,
        key: bytes,
        number: int,
        payload: Payload,
        deps: Sequence[int],
        nested: Sequence[int],
    ) -> None:
        """Make an actor; answer with the one that has its name already, if there is one."""

    def on_made(self, client: Client, number: int) -> None:
        """Note that an actor's `__init__` has returned."""

    def on_unmade(
        self, client: Client, number: int, payload: Payload, nested: Sequence[int]
    ) -> None:
        """Note that an actor's `__init__` has raised."""

    def on_call(
        self,
        client: Client,
        actor_number: int,
        details: CallDetails,
        number: int,
        numbers: Sequence[int],
        payload: Payload,
        deps: Sequence[int],
        nested: Sequence[int],
        returns: Count,
        parent: int | None,
    ) -> Payload | None:
        """Take a call; return an error if it is refused, for a caller that hears it at once."""

    def on_exiting(self, client: Client, number: int) -> None:
        """Note that an actor has called `exit_actor`."""

    def on_kill(self, client: Client, question: int, number: int, no_restart: bool) -> None:
        """Kill an actor's process."""

    def on_named(self, client: Client, question: int, name: str, namespace: str | None) -> None:
        """Answer with the actor of that name."""


class GroupOperations(Protocol):
    """Placement groups: `placement_groups.py`."""

    def on_group(
        self, client: Client, question: int, number: int, ready: int, spec: GroupSpec
    ) -> None:
        """Make a placement group, and seal the object `ready` when its bundles are set aside."""

    def on_remove_group(self, client: Client, question: int, number: int) -> None:
        """Remove a placement group, and what runs in it."""

    def on_named_group(self, client: Client, question: int, name: str) -> None:
        """Answer with the placement group of that name."""

    def on_group_of(self, client: Client, question: int, number: int) -> None:
        """Answer with the placement group of that number."""


class LeaseOperations(Protocol):
    """Resources for an engine within a worker: `leases.py`."""

    def on_reserve(
        self,
        client: Client,
        question: int,
        request: Request,
        purpose: Literal["reserve", "check", "preview"],
    ) -> None:
        """Reserve bundles, or answer whether there can be such, or where they would lie now."""

    def on_return(self, client: Client, question: int) -> None:
        """Take back what the answer to a question gave."""

    def on_offers(self, client: Client, question: int) -> None:
        """Answer with the nodes."""


class StatusOperations(Protocol):
    """The state of the session: `status.py`."""

    def on_query(self, client: Client, question: int, what: str) -> None:
        """Answer with names, groups, nodes, totals, what is free, or the whole status."""


class AttachOperations(Protocol):
    """Training workers within workers: `driver.py`."""

    def on_attach_address(self, client: Client, question: int) -> None:
        """Answer with the socket at which a worker may leave descriptors."""

    def on_attach(self, client: Client, node_id: str, around: Mapping[str, Any]) -> None:
        """Take in a training worker, whose socket its parent has left there."""


class Parts(NamedTuple):
    """The parts of a hub, each with its operations."""

    objects: ObjectOperations
    waits: WaitOperations
    kinds: KindOperations
    tasks: TaskOperations
    streams: StreamOperations
    actors: ActorOperations
    groups: GroupOperations
    leases: LeaseOperations
    status: StatusOperations
    attach: AttachOperations


def operations(parts: Parts) -> dict[str, Callable[..., Any]]:
    """Return the operations by the words that lead to them."""
    objects, waits, kinds, tasks, streams, actors, groups, leases, status, attach = parts
    return {
        "hold": objects.on_hold,
        "drop": objects.on_drop,
        "put": objects.on_put,
        "room": objects.on_room,
        "no_room": objects.on_no_room,
        "unpin": objects.on_unpin,
        "read": objects.on_read,
        "fetch": waits.on_fetch,
        "wait": waits.on_wait,
        "next": waits.on_next,
        "pace": waits.on_pace,
        "lend": waits.on_lend,
        "wait_over": waits.on_wait_over,
        "kind": kinds.on_kind,
        "submit": tasks.on_submit,
        "done": tasks.on_done,
        "raised": tasks.on_raised,
        "cancel": tasks.on_cancel,
        "recalled": tasks.on_recalled,
        "cancel_acknowledged": tasks.on_cancel_acknowledged,
        "item": streams.on_item,
        "passed": streams.on_passed,
        "create": actors.on_create,
        "made": actors.on_made,
        "unmade": actors.on_unmade,
        "call": actors.on_call,
        "exiting": actors.on_exiting,
        "kill": actors.on_kill,
        "named": actors.on_named,
        "group": groups.on_group,
        "remove_group": groups.on_remove_group,
        "named_group": groups.on_named_group,
        "group_of": groups.on_group_of,
        "reserve": leases.on_reserve,
        "return": leases.on_return,
        "offers": leases.on_offers,
        "query": status.on_query,
        "attach_address": attach.on_attach_address,
        "attach": attach.on_attach,
    }
