"""A program that a signal's handler interrupts again and again, wherever it may be.

Arguments: "int" for Ctrl-C or "alarm" for a time limit that raises, a seed, and how often. It ends
with "all is free" if the session still works and holds nothing more.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import dray
from dray import session

BIG = np.ones(300_000)


class TimeUp(Exception):
    """What the handler of the time limit raises."""


def time_is_up(number: int, frame: object) -> None:
    """The handler of the time limit."""
    raise TimeUp


@dray.remote
def echo(value: Any) -> Any:
    """Return what it gets."""
    return value


@dray.remote
def count_to(most: int) -> Any:
    """Yield numbers."""
    yield from range(most)


@dray.remote
def sum_of(refs: list[Any]) -> int:
    """Wait for other tasks."""
    return sum(dray.get(refs))


@dray.remote(num_cpus=0)
class Echo:
    """An actor."""

    def echo(self, value: Any) -> Any:
        """Return what it gets."""
        return value


def works(found: Any, expected: Any) -> None:
    """End the program if something is not what it should be."""
    if found != expected:
        raise SystemExit(f"{found} instead of {expected}")


def jobs(actor: Any) -> list[Callable[[], object]]:
    """Return what the program does, one thing at a time."""
    return [
        lambda: [echo.remote(i) for i in range(50)],
        lambda: works(dray.get([echo.remote(i) for i in range(20)]), [*range(20)]),
        lambda: works(dray.get(actor.echo.remote(3)), 3),
        lambda: works(dray.get(dray.put(BIG)).sum(), 300_000),
        lambda: works(dray.get(echo.remote(BIG)).sum(), 300_000),
        lambda: works(len(dray.wait([echo.remote(i) for i in range(10)], num_returns=4)[0]), 4),
        lambda: works([dray.get(ref) for ref in count_to.remote(9)], [*range(9)]),
        lambda: works(dray.get(sum_of.remote([echo.remote(1), echo.remote(2)])), 3),
        lambda: works(echo.remote(5).future().result(), 5),
        lambda: works(dray.get(dray.get(echo.remote([dray.put(7)]))[0]), 7),
    ]


def made_and_ended() -> None:
    """Make an actor, which ends with its handle."""
    works(dray.get(Echo.remote().echo.remote(1)), 1)


def held() -> tuple[Any, ...]:
    """Return what the session holds: all of it must go."""
    runtime: Any = session.current_engine().runtime
    hub = runtime.hub
    cpus = dray.available_resources()["CPU"]
    workers = [w for w in runtime.pool.all.values() if w.client.blocked or w.client.holds]
    counts = (
        len(runtime.tasks.table.running),
        len(runtime.streams._streams),
        len(runtime.actors.all),
    )
    known = len(runtime._known)  # functions that may be called again
    counts_here, holds = len(runtime.table.counts) - known, len(runtime.client.holds) - known
    mine = counts_here, len(runtime._asked), holds
    clients = [runtime.client, *hub.clients.values()]
    clients = [c for c in clients if c.questions or c.rooms or c.pins]
    return (hub.store.status()["memory_bytes"], cpus, counts, mine, len(clients), len(workers))


def main(kind: str, seed: int, times: int) -> None:
    """Interrupt one thing after the other; then look what is left."""
    raises: type[BaseException] = KeyboardInterrupt
    number = signal.SIGINT
    if kind == "alarm":
        raises, number = TimeUp, signal.SIGALRM
        signal.signal(signal.SIGALRM, time_is_up)
    dray.init(num_cpus=2, object_store_memory=200_000_000)
    actor = Echo.remote()
    works(dray.get(actor.echo.remote(1)), 1)
    choice = random.Random(seed)
    interrupted = 0
    todo = [*jobs(actor), made_and_ended]
    for job in todo:
        job()
    for _ in range(times):
        job = choice.choice(todo)
        timer = threading.Timer(choice.random() / 50, os.kill, (os.getpid(), number))
        try:
            timer.start()
            while True:
                job()
        except raises:
            interrupted += 1
        timer.join()
        works(dray.get(echo.remote(1), timeout=60), 1)
    works(interrupted, times)
    del job, todo
    gc.collect()
    nothing = (0, 2, (0, 0, 1), (1, 0, 1), 0, 0)  # but the actor and its handle
    for _ in range(20_000):  # what was still at work is over some time
        works(dray.get(actor.echo.remote(2), timeout=60), 2)
        if held() == nothing:
            break
    works(held(), nothing)
    wrapped = signal.getsignal(number)
    dray.shutdown()
    works(signal.getsignal(number) is wrapped, False)
    print("all is free")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
