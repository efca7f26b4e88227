"""A training worker of the Ray engine that is a fork of its node's agent: the code in the worker.

Ray does not know its process. When the worker's code first uses Ray (to get, to call, or to load a
reference), the process joins the cluster as a driver of a job of its own, in the namespace of its
session.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

import ray
from ray._private import auto_init_hook, services

from dray.engines.launch.learned_imports import AT_ONCE, Teller
from dray.engines.ray.connect import own_breakpoint
from dray.engines.ray.workers import driver_environment, gpu_variables
from dray.engines.rpc import actor_host, wire
from dray.engines.rpc.actor_host import set_variables


def limits_threads(fds: Sequence[int]) -> bool:
    """Return False: a training decides on its threads itself."""
    return False


def run(inlet: int, fds: Sequence[int]) -> NoReturn:
    """Run a worker to its end; `fds` has a connection to the driver alone."""
    (line,) = fds
    actor_host.run(Connection(line), Teller(inlet, AT_ONCE).look, None)


class Membership(NamedTuple):
    """The way of a worker into the cluster, and what it is there.

    Attributes:
        runtime_env: Environment of the tasks and actors that it starts.
        devices: The ids of the devices among its resources, by resource name.
        group: Id of its run's placement group.
    """

    address: str
    namespace: str
    job_id: str
    node_id: str = ""
    runtime_env: Mapping[str, Any] = {}
    actor_id: str = ""
    resources: Mapping[str, float] = {}
    devices: Mapping[str, Sequence[str]] = {}
    group: str = ""


class Entry(NamedTuple):
    """Puts a worker where its driver is; called in the worker with the driver's first message.

    Attributes:
        membership: Its way into the cluster.
        inherited: Variables that the fork server has of the driver as it was.
        variables: Those that show the worker its devices; None is to be unset.
        own_variables: Those that the user sets for workers.
        directory: Working directory; None leaves it to the node.
    """

    membership: Membership
    inherited: tuple[str, ...]
    variables: Mapping[str, str | None]
    own_variables: Mapping[str, str]
    directory: str | None

    def enter(self, begin: wire.Begin) -> None:
        """Go where the driver is."""
        set_variables(dict.fromkeys(self.inherited))
        set_variables(self.variables)
        gpu_variables.restore_user_variables(self.own_variables)
        driver_environment.take(begin, self.directory)
        _join_when_used(self.membership)


_membership: Membership | None = None
_joining = threading.RLock()


def own_membership() -> Membership | None:
    """Return what this process is in the cluster; None if it is no such worker."""
    return _membership


def _join_when_used(membership: Membership) -> None:
    """Have Ray's own functions join, also those that load the references of a pickle.

    Code that asks whether this process is connected, as in a worker of Ray's, is about to use Ray.
    """
    global _membership
    _membership = membership
    worker = ray._private.worker.global_worker
    check: Callable[[], None] = worker.check_connected

    def join_and_check() -> None:
        join()
        check()

    def is_initialized() -> bool:
        join()
        return True

    if sys.excepthook is ray._private.worker.custom_excepthook:
        # It tells the cluster, and in a fork of this process it would hang.
        sys.excepthook = ray._private.worker.normal_excepthook
    worker.check_connected = join_and_check
    auto_init_hook.auto_init_ray = join
    ray.is_initialized = is_initialized


def join() -> None:
    """Connect this process to its cluster, unless it is."""
    with _joining:
        membership = _membership
        if membership is None or ray._private.worker.global_worker.connected:
            return
        terminated = signal.getsignal(signal.SIGTERM)
        choose = services.get_node_to_connect_for_driver
        services.get_node_to_connect_for_driver = _choose_node(membership.node_id, choose)
        try:
            with own_breakpoint():
                ray.init(
                    address=membership.address,
                    namespace=membership.namespace,
                    runtime_env=dict(membership.runtime_env) or None,
                    logging_level="ERROR",
                )
        finally:
            services.get_node_to_connect_for_driver = choose
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminated)
        pid = os.getpid()
        atexit.register(lambda: ray.shutdown() if os.getpid() == pid else None)


def _choose_node(node_id: str, choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds this worker's node, where several are on one machine.

    Ray takes the head, or any of them.
    """

    def find(client: Any, *args: object, **kwargs: Any) -> Any:
        found = choose(client, *args, **kwargs)
        chosen = getattr(found, "node_id", None)  # earlier releases return a dict
        if chosen is None or chosen.hex() == node_id:
            return found
        nodes = {known.hex(): node for known, node in client.get_all_node_info().items()}
        return nodes.get(node_id, found)

    return find
