"""The engine of a worker that trains something itself, with resources of its session."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from dray.engines.base import Options
from dray.engines.process.engine import ProcessEngine
from dray.engines.process.hub.leases import LeasedReservation
from dray.engines.process.worker.runtime import WorkerRuntime
from dray.engines.rpc import serialization
from dray.engines.runtime import Runtime
from dray.engines.runtime_env import RuntimeEnv
from dray.errors import ConfigError
from dray.scheduling.requests import Node, PlacementPreview, Request, Reservation
from dray.settings import Settings
from dray.status import ProgramStatus

T = TypeVar("T")


class NestedEngine(ProcessEngine):
    """The process engine within a worker: it takes resources from the session's ledger."""

    def __init__(self, host: WorkerRuntime) -> None:
        super().__init__(Options(), Settings())
        self._host = host

    def nodes(self) -> list[Node]:
        nodes: list[Node] = self._host.demand("offers")
        return nodes

    def available(self) -> dict[str, float]:
        return self._host.available_resources()

    @property
    def runtime(self) -> Runtime:  # type: ignore[override]
        return self._host

    def _attach_client(self, sock: socket.socket, node_id: str, around: Mapping[str, Any]) -> None:
        self._host.pass_on(sock, node_id, around)

    def _own_status(self) -> ProgramStatus:
        return ProgramStatus(engine=self.name, note="within a task or actor")

    def _check_known(self, node_id: str) -> None:
        raise ConfigError("only the driver can lose a node")

    def check(self, request: Request, runtime_env: RuntimeEnv) -> None:
        self._host.demand("reserve", request, "check")
        runtime_env.local_directory(self.name)

    def preview(self, request: Request) -> PlacementPreview:
        found = self._host.demand("reserve", request, "preview")
        assert isinstance(found, PlacementPreview)
        return found

    def drive(self, loop: Callable[[], T]) -> T:
        lent = self._host.promise(lambda _: None, "lend")  # the task waits for its workers
        try:
            return loop()
        finally:
            lent.cancel()

    def reserve(self, request: Request) -> Future[Reservation]:
        asked: Future[Reservation] = Future()

        def answered(answer: Any) -> None:
            if not asked.set_running_or_notify_cancel():
                return
            if answer[0] == "refused":
                asked.set_exception(serialization.error_of(answer[1]))
                return
            question, nodes, devices, bundles = answer
            give_back = functools.partial(self._host.give_back, question)
            asked.set_result(LeasedReservation(nodes, devices, bundles, give_back))

        def take_back(asked: Future[Reservation]) -> None:
            if asked.cancelled():  # whether or not the answer is on its way
                self._host.give_back(question)

        question = self._host.promise(answered, "reserve", request, "reserve").question
        asked.add_done_callback(take_back)
        return self._asked.add(asked)
