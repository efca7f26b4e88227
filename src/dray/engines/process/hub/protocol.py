"""The protocol of the hub, the wire of tasks and actors: what the hub hears, and what workers hear.

A message is a tuple: a word and its arguments. The word `hold` leads to the `on_hold` of the part
of the hub that has one, whose first argument is the process that speaks. An operation with a
`question` is answered, with ("answer", question, answer), now or later; an answer ("refused",
error) raises where it is waited for. All others are never answered. The driver's own thread calls
the same operations without a socket between, and `submit` and `call` return to it. All of them run
with the hub's lock held.

The hub hears of references and values (`hub.py`):

    hold number                           a reference has come to a process that had none
    drop number                           a process's last reference has died
    put number payload nested             a value to store
    room question lengths                 answer: room for an object that is about to be written
    no_room place                         room to which nothing is written
    unpin region                          the process looks into a region no more
    read payload                          it has read an object from the disk

of waiting for values, for items and for readers (`waits.py`):

    fetch question numbers                answer: values when all are there, or the first error
    wait question numbers need            answer: the indices of what is there, when so many are
    next question number index            answer: the reference of a stream's item; None at its end
    pace question number count            answer: so many items of a generator have been read
    wait_over question                    the process waits no longer: answer with what there is

of functions and classes (`functions.py`), each known by the digest of its pickle and its options as
long as somebody holds an object of this number, or it has tasks:

    kind question key number what blob nested options place

of tasks, and of results of tasks and calls alike (`tasks.py`):

    submit key number numbers payload deps nested returns parent
                                          a task of a kind, its number and those of its results
    done number values                    the results of a task or call that has returned
    raised number payload nested retriable values
                                          its error, what that refers to, and the results before it
    cancel question number force recursive    cancel the task or call of a result
    recalled dispatch given_back          whether a task that was sent ahead has been given back
    cancel_acknowledged number            a worker knows that a call is cancelled

of streams (`generators.py`):

    item task_number index number payload nested      a generator has yielded
    passed number index                   its only reader here has no use for items before this one

of actors (`actors.py`):

    create question key number payload deps nested
                                          answer: the actor that has its name already, if one has
    made number                           its `__init__` has returned
    unmade number payload nested          its `__init__` has raised
    call actor_number details number numbers payload deps nested returns parent
                                          a call; an error is returned to a caller in the driver
    exiting number                        an actor has called `exit_actor`
    kill question number no_restart       kill its process
    named question name namespace         answer: the actor of that name

of placement groups (`placement_groups.py`), which seal the object `ready` once they are there:

    group question number ready spec      make one
    remove_group question number          remove one, and what runs in it
    named_group question name             answer: the one of that name
    group_of question number              answer: the one of that number

of resources for an engine within a worker (`leases.py`), and of the session's state (`status.py`):

    reserve question request purpose      answer: bundles; or that there can be such; or a preview
    return question                       what the answer to a question gave
    offers question                       answer: the nodes
    query question what                   answer: names, groups, nodes, totals, the whole status ...

and of training workers within workers (`driver.py`):

    attach_address question               answer: the socket at which to leave descriptors
    attach node_id around                 a training worker, whose socket its parent has left there

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

from collections.abc import Callable, Sequence
from typing import Any

_WORDS = (
    *("hold", "drop", "put", "room", "no_room", "unpin", "read"),
    *("fetch", "wait", "next", "pace", "wait_over"),
    *("kind", "submit", "done", "raised", "cancel", "recalled", "cancel_acknowledged"),
    *("item", "passed"),
    *("create", "made", "unmade", "call", "exiting", "kill", "named"),
    *("group", "remove_group", "named_group", "group_of"),
    *("reserve", "return", "offers", "query", "attach_address", "attach"),
)


def operations(parts: Sequence[object]) -> dict[str, Callable[..., Any]]:
    """Return the operations of a hub's parts, by the words that lead to them."""
    named = [(word, f"on_{word}") for word in _WORDS]
    return {
        word: next(getattr(part, name) for part in parts if hasattr(part, name))
        for word, name in named
    }
