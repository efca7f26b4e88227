"""The worker group: the train workers of one attempt, by rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dray.engines.contract import Actor, Engine, Mailbox, Placement
from dray.train.messages import Assignment
from dray.train.worker import Ended, Job, TrainWorker


@dataclass(frozen=True)
class Worker:
    """One rank: its actor, and its place."""

    actor: Actor
    assignment: Assignment
    address: str

    @property
    def rank(self) -> int:
        """Its rank in the whole group."""
        return self.assignment.rank


class RankFailed(Exception):
    """A function that ran on workers failed on one of them."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank = rank
        self.error = error


class WorkerGroup:
    """Workers that have started; backends run functions on them."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)

    @classmethod
    def start(
        cls,
        engine: Engine,
        placements: Sequence[Placement],
        *,
        mailbox: Mailbox,
        run_path: Path,
        attempt: int,
        first_report: int,
        checkpoint: str | None,
        environment: Mapping[str, str],
        modules: Sequence[str],
    ) -> WorkerGroup:
        """Starts a worker in each placement; ranks run node by node."""
        nodes = list(dict.fromkeys(placement.node.node_id for placement in placements))
        ordered = sorted(placements, key=lambda p: nodes.index(p.node.node_id))
        workers: list[Worker] = []
        try:
            for rank, placement in enumerate(ordered):
                node_id = placement.node.node_id
                before = [p.node.node_id for p in ordered[:rank]]
                assignment = Assignment(
                    rank=rank,
                    world_size=len(ordered),
                    local_rank=before.count(node_id),
                    local_world_size=sum(p.node.node_id == node_id for p in ordered),
                    node_rank=nodes.index(node_id),
                    run_path=str(run_path),
                    attempt=attempt,
                    first_report=first_report,
                    checkpoint=checkpoint,
                    gpus=placement.resources.get("GPU", 0),
                )
                actor = engine.start_actor(
                    functools.partial(
                        TrainWorker, assignment=assignment, own_process=engine.distributed
                    ),
                    name=f"rank {rank}",
                    placement=placement,
                    environment={**_rank_variables(assignment), **environment},
                    mailbox=mailbox,
                    modules=modules,
                )
                workers.append(Worker(actor, assignment, placement.node.address))
        except BaseException:
            for worker in workers:
                worker.actor.kill()
            raise
        return cls(workers)

    def __len__(self) -> int:
        """Returns the number of workers."""
        return len(self.workers)

    def rank_of(self, actor: Actor) -> int | None:
        """Returns an actor's rank; None if it is of another attempt."""
        for worker in self.workers:
            if worker.actor is actor:
                return worker.rank
        return None

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
        for worker in self.workers:
            if ranks is None or worker.rank in ranks:
                worker.actor.signal("deliver", message)

    def stop(self) -> None:
        """Lets every worker end in good order."""
        for worker in self.workers:
            worker.actor.stop()

    def kill(self) -> None:
        """Ends every worker at once."""
        for worker in self.workers:
            worker.actor.kill()


def _rank_variables(assignment: Assignment) -> dict[str, str]:
    """The part of torch.distributed's environment contract that is known from the start."""
    return {
        "RANK": str(assignment.rank),
        "WORLD_SIZE": str(assignment.world_size),
        "LOCAL_RANK": str(assignment.local_rank),
        "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
        "NODE_RANK": str(assignment.node_rank),
    }
