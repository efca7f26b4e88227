"""The entry of a worker process, either for tasks and actors or for a training."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NoReturn

from dray.engines.launch.learned_imports import AT_ONCE, Teller
from dray.engines.process.worker import worker
from dray.engines.rpc import actor_host
from dray.engines.rpc.sockets import socket_of


def limits_threads(fds: Sequence[int]) -> bool:
    """Return whether a worker with these descriptors is to compute with its CPUs alone."""
    return _is_of_tasks(fds)


def run(inlet: int, fds: Sequence[int]) -> NoReturn:
    """Run a worker to its end.

    Args:
        fds: A socket for its work; then, for tasks, the shared memory, the disk's file and the
            attach socket, or for a training, a socket by which it uses its session, and the
            driver's doorbell.
    """
    if _is_of_tasks(fds):
        worker.run(inlet, fds)
    line, session, doorbell = fds
    worker.attach_when_used(socket_of(session))
    actor_host.run(Connection(line), Teller(inlet, AT_ONCE).look, socket_of(doorbell))


def _is_of_tasks(fds: Sequence[int]) -> bool:
    return not stat.S_ISSOCK(os.fstat(fds[1]).st_mode)
