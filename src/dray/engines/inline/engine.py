"""The inline engine: actors live in this process and run on the thread that drives the run.

It is for debugging: breakpoints and pdb work in the train function, and tracebacks are not wrapped.
The loop that waits on the mailbox moves to a thread of its own, so that callbacks, checkpoints and
progress happen while the train function runs, as on every engine.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dray.engines.base import (
    Actor,
    ActorFactory,
    ActorSpec,
    Died,
    Mailbox,
    Options,
    Posted,
    Started,
)
from dray.engines.console import OUTLETS
from dray.engines.inline.execution import in_environment
from dray.engines.inline.runtime import InlineRuntime
from dray.engines.local import LocalEngine
from dray.engines.rpc.actor_host import close_actor
from dray.engines.runtime import Args
from dray.errors import WorkerDiedError
from dray.scheduling.ledger import Held
from dray.settings import Settings

T = TypeVar("T")
_Job = Callable[[], None]


class InlineActor(Actor):
    """An actor whose calls are jobs for the thread that drives the run."""

    def __init__(self, name: str, mailbox: Mailbox, jobs: queue.SimpleQueue[_Job | None]) -> None:
        self.name = name
        self.pid = os.getpid()
        self._mailbox = mailbox
        self._jobs = jobs
        self._actor: Any = None
        self._ended = False
        self._around = contextlib.ExitStack()

    def make(
        self,
        factory: ActorFactory,
        around: Sequence[AbstractContextManager[None]],
        started: Started,
    ) -> None:
        """Make the actor's object, on the thread that drives the run."""
        for context in around:
            self._around.enter_context(context)
        self._actor = factory(self._post)
        self._mailbox.put(started)

    def _post(self, message: object, /, *, quiet: bool = False) -> None:
        self._mailbox.put(Posted(self, message))

    def call(self, method: str, /, *args: object) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._jobs.put(lambda: self._run(future, method, args))
        return future

    def _run(self, future: Future[Any], method: str, args: Args) -> None:
        if self._ended:
            return
        try:
            value = getattr(self._actor, method)(*args)
        except BaseException as error:  # noqa: BLE001 (it belongs to the caller)
            future.set_exception(error)
        else:
            future.set_result(value)

    def signal(self, method: str, /, *args: object) -> None:
        getattr(self._actor, method)(*args)

    def stop(self) -> None:
        self._jobs.put(self._end)

    def kill(self) -> None:
        wake = getattr(self._actor, "wake", None)  # a call may wait for what does not come any more
        if wake is not None:
            wake()
        self._jobs.put(self._end)

    def _end(self) -> None:
        """Free what the actor held, and put this process back where it was."""
        if self._ended:
            return
        self._ended = True
        close_actor(self._actor)
        self._around.close()
        self._mailbox.put(Died(self, WorkerDiedError(0), expected=True))


class InlineEngine(LocalEngine):
    """Runs actors in this process."""

    name = "inline"
    distributed = False

    def __init__(self, options: Options, settings: Settings) -> None:
        super().__init__(options)
        self._driving = threading.local()
        self._runtime = InlineRuntime(
            self._ledger, self._runtime_env, options.namespace, self.variables
        )

    def start_actor(self, spec: ActorSpec) -> Actor:
        reservation, jobs = spec.reservation, self._driving.jobs
        assert isinstance(reservation, Held)
        node, devices = reservation.nodes[spec.bundle], reservation.devices[spec.bundle]
        runtime_env = self._runtime_env | spec.runtime_env
        own = runtime_env.expanded(os.environ)
        variables = {**self.variables(devices, node, own), **own}
        around = [
            in_environment(variables, runtime_env.local_directory(self.name)),
            self._runtime.holding(reservation.bundles[spec.bundle], devices),
        ]
        actor = InlineActor(spec.name, spec.mailbox, jobs)
        started = Started(actor, node.node_id, node.address, devices)
        jobs.put(lambda: actor.make(spec.factory, around, started))
        return actor

    def drive(self, loop: Callable[[], T]) -> T:
        jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        outcome: Future[T] = Future()

        def run_loop() -> None:
            self._driving.jobs = jobs
            try:
                outcome.set_result(loop())
            except BaseException as error:  # noqa: BLE001 (raised again where drive was called)
                outcome.set_exception(error)
            finally:
                jobs.put(None)

        thread = threading.Thread(target=run_loop, name="dray-controller", daemon=True)
        thread.start()
        while (job := _next(jobs)) is not None:
            job()
        thread.join()
        return outcome.result()

    @property
    def runtime(self) -> InlineRuntime:
        return self._runtime

    def close(self) -> None:
        self.closed = True
        self._ledger.close()
        self._asked.close()
        self._runtime.close()
        OUTLETS["stdout"].flush()


def _next(jobs: queue.SimpleQueue[_Job | None]) -> _Job | None:
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # between jobs nothing is; the loop decides
            return jobs.get()
