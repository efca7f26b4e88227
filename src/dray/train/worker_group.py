"""The worker group: the train workers of one attempt, by rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any

from dray.engines.contract import Actor, Engine, Mailbox, Reservation, Started
from dray.engines.runtime_env import RuntimeEnv
from dray.train.messages import Assignment, RunInfo
from dray.train.worker import Ended, Job, TrainWorker


class Worker:
    """One worker: its actor, and once it has started, its place.

    Attributes:
        actor: Where it lives.
        rank: Its rank; until all workers have started, the number of its bundle.
        started: Where its process runs, once it does.
    """

    def __init__(self, actor: Actor, bundle: int) -> None:
        self.actor = actor
        self.bundle = bundle
        self.rank = bundle
        self.started: Started | None = None

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
    def has_devices(self) -> bool:
        """Whether the engine gave its process devices of its own."""
        return self.started is not None and bool(self.started.devices)

    @property
    def first_device(self) -> tuple[int, str]:
        """Where its devices stand among those of its node."""
        assert self.started is not None
        ids = [device for ids in self.started.devices.values() for device in ids]
        first = ids[0] if ids else ""
        return (int(first), "") if first.isdigit() else (0, first)


class RankFailed(Exception):
    """A function that ran on workers failed on one of them."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank = rank
        self.error = error


class WorkerGroup:
    """The workers of one attempt, by rank; backends run functions on them."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self._by_actor = {worker.actor: worker for worker in workers}

    @classmethod
    def start(
        cls,
        engine: Engine,
        reservation: Reservation,
        size: int,
        *,
        mailbox: Mailbox,
        runtime_env: RuntimeEnv,
        modules: Sequence[str],
    ) -> WorkerGroup:
        """Begins to start a worker in each bundle of a reservation."""
        workers: list[Worker] = []
        try:
            for bundle in range(size):
                actor = engine.start_actor(
                    functools.partial(TrainWorker, own_process=engine.distributed),
                    name=f"worker {bundle}",
                    reservation=reservation,
                    bundle=bundle,
                    runtime_env=runtime_env,
                    mailbox=mailbox,
                    modules=modules,
                )
                workers.append(Worker(actor, bundle))
        except BaseException:
            for worker in workers:
                worker.actor.kill()
            raise
        return cls(workers)

    def started(self, event: Started) -> bool:
        """Takes note of a worker's start; returns whether all have started now."""
        self._by_actor[event.actor].started = event
        return not self.missing()

    def missing(self) -> list[int]:
        """Returns the workers that have not started."""
        return [worker.rank for worker in self.workers if worker.started is None]

    def describe(self) -> list[dict[str, Any]]:
        """Returns for every rank where it runs, as JSON can say it."""
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

    def take_seats(self, run: RunInfo, gpus: float) -> None:
        """Gives every worker its rank: node by node, on a node by device, then as they were asked.

        Raises:
            RankFailed: A worker could not take its seat.
        """
        nodes = list(dict.fromkeys(worker.node_id for worker in self.workers))
        node_ranks = {node_id: rank for rank, node_id in enumerate(nodes)}
        self.workers.sort(key=lambda w: (node_ranks[w.node_id], w.first_device, w.bundle))
        local: dict[str, list[Worker]] = {node_id: [] for node_id in nodes}
        for rank, worker in enumerate(self.workers):
            worker.rank = rank
            local[worker.node_id].append(worker)
        self._collect(
            {
                worker.actor.call(
                    "take_seat",
                    Assignment(
                        rank=worker.rank,
                        world_size=len(self),
                        local_rank=local[worker.node_id].index(worker),
                        local_world_size=len(local[worker.node_id]),
                        node_rank=node_ranks[worker.node_id],
                        address=worker.address,
                        run=run,
                        gpus=gpus,
                        own_devices=worker.has_devices,
                    ),
                ): worker.rank
                for worker in self.workers
            }
        )

    def __len__(self) -> int:
        """Returns the number of workers."""
        return len(self.workers)

    def rank_of(self, actor: Actor) -> int | None:
        """Returns an actor's rank; None if it is of another attempt."""
        worker = self._by_actor.get(actor)
        return None if worker is None else worker.rank

    def execute(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Runs a function on every worker at once; returns what each returned, by rank.

        Raises:
            RankFailed: On one of them it raised, or the worker died.
        """
        return self._collect(
            {w.actor.call("execute", function, *args): w.rank for w in self.workers}
        )

    def execute_single(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a function on one worker; returns what it returned.

        Raises:
            RankFailed: It raised, or the worker died.
        """
        return self._collect({self.workers[rank].actor.call("execute", function, *args): rank})[0]

    def _collect(self, calls: Mapping[Future[Any], int]) -> list[Any]:
        """Returns all results, or raises as soon as there is one failure: others may hang on it."""
        done, _ = wait(calls, return_when=FIRST_EXCEPTION)
        for call in done:
            error = call.exception()
            if error is not None:
                raise RankFailed(calls[call], error) from error
        return [call.result() for call in calls]

    def run(self, job: bytes | Job) -> list[Future[Ended]]:
        """Begins the train function on every worker.

        Args:
            job: The function and its arguments; pickled, if workers have processes of their own.
        """
        return [worker.actor.call("run", job) for worker in self.workers]

    def tell(self, message: Any, ranks: Sequence[int] | None = None) -> None:
        """Sends a message to the given ranks, or to all, even while the train function runs."""
        for worker in self.workers if ranks is None else [self.workers[rank] for rank in ranks]:
            worker.actor.signal("deliver", message)

    def stop(self) -> None:
        """Lets every worker end in good order."""
        for worker in self.workers:
            worker.actor.stop()

    def kill(self) -> None:
        """Ends every worker at once."""
        for worker in self.workers:
            worker.actor.kill()
