"""The hub's message protocol for tasks and actors: its operations, and the messages to workers.

A message is a tuple of a word and its arguments. The word selects an operation (`operations`),
whose first argument is the process that sent the message. An operation with a `question` is
answered with ("answer", question, answer), now or later. An answer ("refused", error) raises where
the process waits for it. All other operations are never answered. The driver's own thread calls the
same operations without a socket, and `submit` and `call` return a value to it. All operations run
with the hub's lock held.

Besides answers, a worker receives:

    ("begin", environment)                   once, before anything else
    ("kind", key, what, blob, info)          a function or class, before its first use there
    ("forget", keys)                         functions and classes that are not used any more
    ("run", grant, *job)                     a task, with the accelerators it has
    ("make", details, *job)                  the actor that will live in it
    ("call", *job)                           a method of its actor
    ("stop",)                                the end

where job is `number, key, payload, deps, returns, details`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dray.engines.process.hub.actors import Actors
from dray.engines.process.hub.generators import Streams
from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.leases import Leases
from dray.engines.process.hub.placement_groups import Groups
from dray.engines.process.hub.records import Client
from dray.engines.process.hub.tasks import Tasks
from dray.engines.process.hub.waits import Waits


class Session(Protocol):
    """The operations of the driver itself: `driver.py`."""

    def on_query(self, client: Client, question: int, what: str) -> None: ...

    def on_attach(self, client: Client, node_id: str, around: Mapping[str, Any]) -> None: ...


def operations(
    hub: Hub,
    waits: Waits,
    tasks: Tasks,
    streams: Streams,
    actors: Actors,
    groups: Groups,
    leases: Leases,
    session: Session,
) -> dict[str, Callable[..., Any]]:
    """Return the operations by the words that lead to them."""
    return {
        # References and values.
        "hold": hub.on_hold,  # a reference has come to a process that had none
        "drop": hub.on_drop,  # a process's last reference has died
        "put": hub.on_put,  # store a value
        "room": hub.on_room,  # for an object that a process is about to write
        "no_room": hub.on_no_room,  # a process writes nothing to it
        "unpin": hub.on_unpin,  # a process looks into a region no more
        "read": hub.on_read,  # a process has read an object from the disk
        # Waits.
        "fetch": waits.on_fetch,  # answered with values when all are there, or the first error
        "wait": waits.on_wait,  # answered with the indices of what is there, when so many are
        "next": waits.on_next,  # answered with the reference of a stream's item; None is its end
        "pace": waits.on_pace,  # answered when so many of a generator's items have been read
        "lend": waits.on_lend,  # others use a process's CPUs until it waits no longer
        "wait_over": waits.on_wait_over,  # answer one of these with what there is
        # Functions and classes, by the digest of the pickle and the options. One is known as long
        # as somebody holds the object of its number, or it has tasks.
        "kind": tasks.kinds.on_kind,
        # Tasks, and results of tasks and calls alike.
        "submit": tasks.on_submit,  # a task, with its number and those of its results
        "done": tasks.on_done,  # the results of a task or call that has returned
        "raised": tasks.on_raised,  # its error, what that refers to, and the results before it
        "timed": tasks.table.timeline.on_timed,  # when a task or call has begun, and ended
        "cancel": tasks.on_cancel,  # the task or call of a result
        "recalled": tasks.on_recalled,  # whether a worker gives back a task that was sent ahead
        "cancel_acknowledged": tasks.on_cancel_acknowledged,  # a worker knows of it
        # Streams.
        "item": streams.on_item,  # what a generator has yielded
        "passed": streams.on_passed,  # a stream's only reader has no use for items before this one
        # Actors.
        "create": actors.on_create,  # answered with the one of its name, if there is one
        "made": actors.on_made,  # its `__init__` has returned
        "unmade": actors.on_unmade,  # its `__init__` has raised
        "call": actors.on_call,  # returns an error if it is refused, for a caller that hears it
        "exiting": actors.on_exiting,  # it has called `exit_actor`
        "kill": actors.on_kill,  # end its process
        "named": actors.on_named,  # answered with the actor of that name
        # Placement groups.
        "group": groups.on_group,  # `ready` is sealed when its bundles are set aside
        "remove_group": groups.on_remove_group,  # and what runs in it
        "named_group": groups.on_named_group,  # answered with the group of that name
        "group_of": groups.on_group_of,  # answered with the group of that number
        # Resources for an engine within a worker.
        "reserve": leases.on_reserve,  # bundles, or whether there can be such, or their places now
        "return": leases.on_return,  # what the answer to a question gave
        "offers": leases.on_offers,  # answered with the nodes
        # The state of the session.
        "query": session.on_query,  # names, groups, nodes, totals, what is free, or all of it
        # Training workers within workers.
        "attach": session.on_attach,  # a training worker, whose socket its parent has left there
        "leave": hub.on_leave,  # a training worker that is done
    }
