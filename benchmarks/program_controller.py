"""Program: drives the controller through a run of many simulated workers that answer at once.

Arguments: the library (only dray's controller is measured), and the number of workers. The run
starts, assigns ranks, and handles ten reports of each rank, a collective, and a checkpoint of all
ranks. Then one rank fails, the run restarts, and returns.
"""

import functools
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks.records import record
from dray.engines.base import Actor, ActorSpec, Died, Posted, Started
from dray.errors import RemoteTraceback, WorkerDiedError
from dray.scheduling.requests import Node
from dray.settings import Settings
from dray.train.backend import Backend, BackendConfig
from dray.train.config import FailureConfig, RunConfig
from dray.train.run.controller import Controller
from dray.train.run.output.progress import Progress
from dray.train.run.output.screens import open_screen
from dray.train.run.state import State
from dray.train.scaling import ScalingConfig
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import run_messages
from dray.train.worker.train_worker import Ended

REPORTS = 10
WORKERS_A_NODE = 8


class Worker(Actor):
    """A simulated worker without a process, which answers each request at once."""

    pid = 1

    def __init__(self, engine: "SimulatedEngine", spec: ActorSpec) -> None:
        self.name = spec.name
        self._engine = engine
        self.bundle = spec.bundle
        self.job: Future[Any] = Future()
        self.over = False

    def call(self, method: str, /, *args: Any) -> Future[Any]:
        if method == "run":
            return self.job
        answer: Future[Any] = Future()
        answer.set_result(None)
        return answer

    def signal(self, method: str, /, *args: Any) -> None:
        message = args[0]
        if isinstance(message, run_messages.Share):
            self.post(run_messages.Staged(message.report, dict.fromkeys(message.files, (0, None))))

    def stop(self) -> None:
        self.end()

    def kill(self) -> None:
        self.end()

    def end(self) -> None:
        """End as if killed by dray."""
        if not self.over:
            self.over = True
            self._engine.put(Died(self, WorkerDiedError(-9), expected=True))

    def post(self, message: object) -> None:
        """Send the controller a message."""
        self._engine.put(Posted(self, message))


class SimulatedEngine:
    """A simulated engine and mailbox; if the mailbox is empty, the next step of the run begins."""

    name = "simulated"
    distributed = True
    one_host = False
    shows_output = False
    env_vars = ()
    broken = False

    def __init__(self, workers: int) -> None:
        self._events: deque[Any] = deque()
        self._nodes = [
            Node(f"node-{n}", f"10.0.{n // 256}.{n % 256}", {"CPU": WORKERS_A_NODE})
            for n in range(-(-workers // WORKERS_A_NODE))
        ]
        self._workers: list[Worker] = []
        self._steps = iter(self._life())
        self._step = "start"
        self._began = time.thread_time()
        self.seconds: dict[str, float] = {}

    # Methods of a mailbox.

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        self._events.append(item)

    def get(self, *_: Any, **__: Any) -> Any:
        while not self._events:
            self.finish_step()
            self._step, begin = next(self._steps)
            self._began = time.thread_time()
            begin()
        return self._events.popleft()

    def finish_step(self) -> None:
        """Add the time since the step began to its total."""
        taken = time.thread_time() - self._began
        self.seconds[self._step] = self.seconds.get(self._step, 0.0) + taken

    def _life(self) -> "list[tuple[str, Callable[[], None]]]":
        first = [("a report", functools.partial(self._report, number)) for number in range(REPORTS)]
        return [
            *first,
            ("a collective", self._collect),
            ("a checkpoint of all", lambda: self._report(REPORTS, files=True)),
            ("a failure and the restart", self._fail),
            ("the end", self._return),
        ]

    def _report(self, number: int, files: bool = False) -> None:
        for worker in self._workers:
            brought = (f"of-{worker.bundle}",) if files else None
            worker.post(run_messages.Reported(number, {"metrics": {"loss": 0.5}}, brought))

    def _collect(self) -> None:
        for worker in self._workers:
            worker.post(run_messages.CollectiveArrival(0, "barrier", ()))

    def _fail(self) -> None:
        error = RuntimeError("its own")
        error.__cause__ = RemoteTraceback("where")
        workers, self._workers = self._workers, []
        workers[-1].job.set_exception(error)

    def _return(self) -> None:
        for worker in self._workers:
            worker.job.set_result(Ended())

    # Methods of an engine.

    def nodes(self) -> list[Node]:
        return self._nodes

    def reserve(self, request: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self)
        return future

    def release(self) -> None:
        pass

    def watch_leaving(self, tell: Callable[[], object]) -> Callable[[], None]:
        return lambda: None

    def until_closed(self) -> Future[None]:
        return Future()

    def start_actor(self, spec: ActorSpec) -> Worker:
        worker = Worker(self, spec)
        self._workers.append(worker)
        node = self._nodes[spec.bundle // WORKERS_A_NODE]
        self.put(Started(worker, node.node_id, node.address))
        return worker


def run(workers: int) -> dict[str, float]:
    """Drive a run from start to end; return the seconds of each step."""
    with tempfile.TemporaryDirectory() as base:
        engine, path = SimulatedEngine(workers), Path(base) / "run"
        directory = RunDirectory(path)
        directory.storage.open()
        config = RunConfig(
            name="run", storage_path=base, failure_config=FailureConfig(max_failures=1)
        )
        scaling = ScalingConfig(num_workers=workers)
        backend = (Backend(), BackendConfig())
        progress = Progress("run", path, open_screen(False))
        controller = Controller(
            engine,  # type: ignore[arg-type] # the part of one that a run asks for
            directory,
            scaling,
            config,
            backend,
            b"",
            progress,
            Settings(),
            engine,  # type: ignore[arg-type]
        )
        outcome = controller.run()
        engine.finish_step()
        directory.storage.close()
    if outcome.state is not State.FINISHED:
        raise AssertionError(outcome)
    engine.seconds["a report"] /= REPORTS
    return engine.seconds


if __name__ == "__main__":
    workers = int(sys.argv[2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = run(workers)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    record("lived", seconds=seconds, bytes_a_worker=grown * 1024 / workers)
