"""The worker group: the train workers of one attempt, by rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from dray.engines.base import Actor, Started
from dray.errors import text_of
from dray.scheduling.requests import Node
from dray.train.planning.ranks import Devices, RankAssignment, WorkerPlacement, assign_ranks
from dray.train.worker.run_messages import Assignment


@dataclass(eq=False)
class WorkerState:
    """One worker: its actor, and once it has started, its place.

    Attributes:
        rank: Its rank; until all workers have started, the number of its bundle.
        started: Place of its process, once it runs.
        position: Its place among all, once they have ranks.
    """

    actor: Actor
    bundle: int
    rank: int = field(init=False)
    started: Started | None = None
    position: RankAssignment | None = None

    def __post_init__(self) -> None:
        self.rank = self.bundle

    @property
    def node_id(self) -> str:
        """The node it runs on."""
        assert self.started is not None
        return self.started.node_id

    @property
    def address(self) -> str:
        """The address of its node."""
        assert self.started is not None
        return self.started.address

    @property
    def devices(self) -> Devices:
        """The ids of its accelerators, by resource name."""
        assert self.started is not None
        return self.started.devices


class RankFailed(Exception):
    """A function that ran on workers failed on one of them."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {text_of(error)}")
        self.rank = rank
        self.error = error


class Interrupted(Exception):
    """Workers are waited for no longer, because of Ctrl-C."""


class WorkerGroup:
    """The workers of one attempt, by rank; backends run functions on them.

    Attributes:
        workers: The workers; by rank, once they have ranks.
        warn: Tells the user something.
        collectives: Backend of the collectives, such as "gloo", once it is known.
        paced: Whether ranks keep close to the callbacks that hear of each report.
    """

    def __init__(
        self,
        workers: Sequence[WorkerState],
        warn: Callable[[str], object],
        *,
        paced: bool = False,
    ) -> None:
        self.workers = list(workers)
        self.warn = warn
        self.paced = paced
        self.collectives = ""
        self._unstarted = {worker for worker in workers if worker.started is None}
        self._by_actor = {worker.actor: worker for worker in workers}
        self._done: SimpleQueue[Future[object] | None] = SimpleQueue()
        self._interrupted = False

    def started(self, event: Started) -> bool:
        """Take note of a worker's start; return whether all have started now."""
        worker = self._by_actor[event.actor]
        self._unstarted.discard(worker)
        worker.started = event
        return not self._unstarted

    def missing(self) -> list[int]:
        """Return the workers that have not started."""
        return [worker.rank for worker in self.workers if worker.started is None]

    def describe(self) -> list[dict[str, object]]:
        """Return for every rank where it runs, as JSON-compatible values."""
        return [
            {
                "node": worker.node_id,
                "address": worker.address,
                "pid": worker.actor.pid,
                **({"devices": dict(worker.started.devices)} if worker.started.devices else {}),
            }
            for worker in self.workers
            if worker.started is not None
        ]

    def assign_ranks(
        self, nodes: Mapping[str, Node], assign: Callable[[WorkerState], Assignment]
    ) -> None:
        """Give every worker its rank; see `ranks.assign_ranks`.

        Args:
            nodes: Nodes of the cluster, by id.
            assign: Returns what a worker that has its position is told.

        Raises:
            RankFailed: A worker could not start its session.
        """
        places = []
        for worker in self.workers:
            # A node that has come a moment ago may not be known yet.
            node = nodes.get(worker.node_id) or Node(worker.node_id, worker.address, {})
            places.append(WorkerPlacement(node, worker.devices))
        positions = assign_ranks(places)
        self.workers = [self.workers[position.bundle] for position in positions]
        for worker, position in zip(self.workers, positions, strict=True):
            worker.rank, worker.position = position.rank, position
        self._collect(
            {
                worker.actor.call("start_session", assign(worker)): worker.rank
                for worker in self.workers
            }
        )

    @property
    def positions(self) -> list[RankAssignment]:
        """The nodes and addresses of the workers, by rank."""
        return [worker.position for worker in self.workers if worker.position is not None]

    def __len__(self) -> int:
        return len(self.workers)

    def rank_of(self, actor: Actor) -> int | None:
        """Return an actor's rank; None if it is of another attempt."""
        worker = self._by_actor.get(actor)
        return None if worker is None else worker.rank

    def rank(self, actor: Actor) -> int:
        """Return the rank of an actor of this attempt."""
        return self._by_actor[actor].rank

    def execute(
        self, function: Callable[..., object], *args: object, timeout_s: float | None = None
    ) -> list[Any]:
        """Run a function on every worker at once; return what each returned, by rank.

        Args:
            function: Function to run.
            args: Its arguments.
            timeout_s: Limit in seconds; default: none.

        Raises:
            RankFailed: On one of them it raised or took too long, or the worker died.
        """
        return self._collect(
            {w.actor.call("execute", function, *args): w.rank for w in self.workers}, timeout_s
        )

    def execute_single(self, rank: int, function: Callable[..., object], *args: object) -> Any:
        """Run a function on one worker; return what it returned.

        Raises:
            RankFailed: It raised, or the worker died.
        """
        return self._collect({self.workers[rank].actor.call("execute", function, *args): rank})[0]

    def _collect(
        self, calls: Mapping[Future[object], int], timeout_s: float | None = None
    ) -> list[Any]:
        """Return all results, or raise as soon as there is one failure: others may hang on it."""
        done: SimpleQueue[Future[object] | None] = SimpleQueue()
        self._done = done
        for call in calls:
            call.add_done_callback(done.put)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiting = dict(calls)
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                finished = None if self._interrupted else done.get(timeout=left)
            except Empty:
                late = TimeoutError(f"no answer within {timeout_s:g} s")
                raise RankFailed(next(iter(waiting.values())), late) from None
            if finished is None:
                raise Interrupted
            rank, error = waiting.pop(finished), finished.exception()
            if error is not None:
                raise RankFailed(rank, error) from error
        return [call.result() for call in calls]

    def interrupt(self) -> None:
        """Have nobody wait for results any longer. May be called from a signal handler."""
        self._interrupted = True
        self._done.put(None)

    def tell(self, message: object, ranks: Sequence[int] | None = None) -> None:
        """Send a message to the given ranks, or to all, even while the train function runs."""
        for worker in self.workers if ranks is None else [self.workers[rank] for rank in ranks]:
            worker.actor.signal("deliver", message)

    def stop(self) -> None:
        """Let every worker end cleanly."""
        for worker in self.workers:
            worker.actor.stop()

    def kill(self) -> None:
        """End every worker at once, and last rank 0, which the others may complain to miss."""
        for worker in reversed(self.workers):
            worker.actor.kill()
