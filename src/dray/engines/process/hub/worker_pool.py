"""Worker processes for tasks and actors, as the driver holds them: started, idle, gone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from dray.engines.process.hub.records import RuntimeKey, WorkerProcess
from dray.engines.rpc.io_thread import Reader
from dray.engines.rpc.output_pipe import OutputPipe
from dray.engines.rpc.titled_output import TitledLines
from dray.scheduling.requests import Node


class OutputTap:
    """Shows what workers print, each line with its origin.

    Args:
        show: Takes a stream's name and lines.
    """

    def __init__(self, reader: Reader, show: Callable[[str, Sequence[str]], None]) -> None:
        self._reader = reader
        self._show = show
        self._open: dict[OutputPipe, WorkerProcess] = {}

    def watch(self, worker: WorkerProcess, fd: int, stream: str) -> None:
        """Take a descriptor, as its owner, from which a worker's output is read."""
        take = functools.partial(self._take, worker, stream, TitledLines())
        output = OutputPipe(self._reader, fd, take, lambda: self._open.pop(output))
        self._open[output] = worker
        output.watch()

    def _take(self, worker: WorkerProcess, stream: str, lines: TitledLines, data: bytes) -> None:
        shown = [
            f"({title or worker.title} pid={worker.pid}) {_last_state(line)}"
            for title, line in lines.feed(data)
        ]
        if shown:
            self._show(stream, shown)

    def drain(self, worker: WorkerProcess) -> None:
        """Show what a worker that is gone has left."""
        self._reader.do_tasks()
        for output, owner in list(self._open.items()):
            if owner is worker:
                output.finish()

    def forget(self, worker: WorkerProcess) -> None:
        """Let a worker's output be that was not started. From any thread."""
        self._reader.run(lambda: self.drain(worker))

    def close(self) -> None:
        """Show what is left and free the descriptors."""
        for output in list(self._open):
            output.finish()


def _last_state(line: bytes) -> str:
    from dray.engines.terminal_lines import last_state  # slow to import, and many print nothing

    return last_state(line)


class Pool:
    """The workers that no task uses now.

    Args:
        start: Starts a worker process for a node and a runtime environment.
        most_idle: Idle workers kept for each node.
    """

    def __init__(self, start: Callable[[Node, RuntimeKey], WorkerProcess], most_idle: int) -> None:
        self._start = start
        self._most_idle = most_idle
        self._idle: dict[str, dict[WorkerProcess, None]] = {}  # by node, the longest idle first
        self.all: dict[int, WorkerProcess] = {}

    def take(
        self,
        node: Node,
        runtime_env: RuntimeKey,
        *,
        fresh: bool = False,
        counted: bytes | None = None,
    ) -> WorkerProcess:
        """Return a worker that nobody uses; a new one if there is none, or if asked for.

        Args:
            counted: The function whose calls are counted, by its key: one that has served nothing
                else. None is one whose calls are not.
        """
        idle = self._idle.get(node.node_id, {})
        served = set() if counted is None else {counted}
        for worker in reversed(() if fresh else idle):
            same = worker.runtime_env == runtime_env and worker.calls.keys() == served
            if same and not worker.gone:
                del idle[worker]
                return worker
        worker = self._start(node, runtime_env)
        self.all[worker.number] = worker
        return worker

    def give_back(self, worker: WorkerProcess) -> WorkerProcess | None:
        """Take a worker that is not used any more; return the longest idle if there are enough."""
        idle = self._idle.setdefault(worker.node.node_id, {})
        idle[worker] = None
        if len(idle) <= self._most_idle:
            return None
        longest = next(iter(idle))
        del idle[longest]
        return longest

    def forget(self, worker: WorkerProcess) -> None:
        self.all.pop(worker.number, None)
        self._idle.get(worker.node.node_id, {}).pop(worker, None)
