"""The train worker: the actor that runs the train function of one rank."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dray import host
from dray.engines.base import Post
from dray.engines.rpc import wire
from dray.engines.rpc.actor_host import set_variables
from dray.engines.rpc.pickler import MAIN_MODULES
from dray.errors import ConfigError, SerializationError, StorageError, describe, text_of
from dray.train.data_config import Datasets
from dray.train.storage.place import RemotePath
from dray.train.storage.run_directory import RunDirectory
from dray.train.worker import cpu_affinity, device_visibility, log_records, malloc, run_messages
from dray.train.worker.current_session import leave_session, start_session
from dray.train.worker.session import TrainingStopped, TrainSession


class Job(NamedTuple):
    """The work of a train worker: a function with its arguments, and datasets."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    datasets: Datasets | None = None


_RETURNED = "the return value of rank 0"


class Ended(NamedTuple):
    """The end of a train function: it returned, or the user asked the run to stop.

    Attributes:
        value: Return value of rank 0, if it need not cross a process boundary.
        pickled: Return value of rank 0, if it must; on its own, so that nothing else fails with it.
        trouble: Reason why it cannot be pickled.
        stopped: Whether the user asked the run to stop.
    """

    value: object = None
    pickled: bytes = b""
    trouble: str = ""
    stopped: bool = False

    def returned(self) -> object:
        """Return what the function returned, on rank 0.

        Raises:
            SerializationError: It cannot be sent.
        """
        if self.trouble:
            raise SerializationError(self.trouble)
        if not self.pickled:
            return self.value
        try:
            return wire.load(self.pickled)
        except Exception as error:  # unpickling runs the user's code
            raise SerializationError(
                f"{_RETURNED} cannot be sent to another process: it does not load in the driver "
                f"({describe(error)}). Return the values that it is made from, or save it in a "
                "checkpoint."
            ) from error


class TrainWorker:
    """Lives in a worker; the controller calls it.

    Args:
        own_process: Whether this process belongs to the worker alone.
    """

    def __init__(self, post: Post, *, own_process: bool) -> None:
        self._post = post
        self._own_process = own_process
        self._session: TrainSession | None = None

    def start_session(self, assignment: run_messages.Assignment) -> None:
        """Take a place in the run.

        Raises:
            ConfigError: This node does not see the run directory.
        """
        _check_storage(assignment)
        os.environ.update(_rank_variables(assignment))
        set_variables(device_visibility.shared_variables(assignment, os.environ))
        if self._own_process:
            _settle_on_cores(assignment)
            malloc.keep_freed_memory(os.environ)
            _change_directory(assignment.run.working_directory)
            log_records.show(assignment.run.log_level)
        self._session = TrainSession(assignment, self._post)
        start_session(self._session)

    def execute(self, function: Callable[..., object], *args: object) -> object:
        """Run a hook of the framework."""
        return function(*args)

    def run(self, job: bytes | Job) -> Ended:
        """Run the train function.

        Args:
            job: The function and its arguments; pickled, if they crossed a process boundary.
        """
        function, args, datasets = wire.load(job) if isinstance(job, bytes) else job
        if self._own_process:
            _show_in_main(function)
        assert self._session is not None
        if datasets is not None:
            self._session.datasets = datasets
            if self._own_process and datasets.context is not None:
                datasets.context.make_current()
        try:
            with self._session.uploading():
                value = function(*args)
        except TrainingStopped:
            return Ended(stopped=True)
        except SystemExit as error:
            if error.code in (None, 0):
                return Ended()
            raise
        return self._pack(value)

    def _pack(self, value: object) -> Ended:
        assert self._session is not None
        if self._session.assignment.rank != 0:  # nobody asks for it
            return Ended()
        if not self._own_process:
            return Ended(value)
        try:
            return Ended(pickled=wire.dump(value, _RETURNED))
        except Exception as error:  # noqa: BLE001 (the training is done, whatever it returns)
            return Ended(trouble=text_of(error))

    def close(self) -> None:
        """Free what the rank held."""
        if self._session is None:
            return
        if not self._own_process:
            self._session.clean_ups.close()
        leave_session()

    def wake(self) -> None:
        """End a wait of the train function, where its process cannot be killed."""
        if self._session is not None:
            self._session.wake()

    def deliver(self, message: object) -> None:
        """Take a message of the controller, on the control thread."""
        assert self._session is not None
        self._session.deliver(message)


def _settle_on_cores(assignment: run_messages.Assignment) -> None:
    """Take this worker's share of its node's cores."""
    local_rank, local_world_size = assignment.local_rank, assignment.local_world_size
    usable = host.cpu_count()  # by all workers of the node: a pinned one sees its own only
    own = cpu_affinity.pin(local_rank, local_world_size) if assignment.pinned else 0
    threads = cpu_affinity.threads_per_worker(usable, local_world_size, assignment.cpus, own)
    cpu_affinity.set_threads(threads, os.environ)


def _change_directory(directory: str | None) -> None:
    if directory is not None:
        with StorageError.instead(f"workers cannot work in {directory}"):
            os.makedirs(directory, exist_ok=True)
            os.chdir(directory)


def _check_storage(assignment: run_messages.Assignment) -> None:
    """Look whether this node sees what the driver has written into the run directory."""
    run = assignment.run
    if isinstance(run.place, RemotePath):
        if run.token is not None and RunDirectory(run.place).storage.token() != run.token:
            raise ConfigError(
                f"the node {assignment.address}, where rank {assignment.rank} runs, does not see "
                f"the files that the driver has written to {run.place}. Give "
                "RunConfig(storage_path=...) a storage that all workers reach (memory:// exists "
                "in one process only, for ScalingConfig(num_workers=0)); if it shows new files "
                "late, say so with RunConfig(shared_storage=True)"
            )
    elif run.token is None:
        with StorageError.instead(f"the run directory {run.path} cannot be written"):
            Path(run.path, "metrics").mkdir(parents=True, exist_ok=True)
    elif RunDirectory(run.place).storage.token() != run.token:
        raise ConfigError(
            f"the run directory {run.path} is only on the driver's machine: the node "
            f"{assignment.address}, where rank {assignment.rank} runs, does not see it. Set "
            "RunConfig(storage_path=...) to a directory that all nodes share (NFS or another "
            "network file system, at the same path); if this one is shared but shows new files "
            "late, say so with RunConfig(shared_storage=True)"
        )


def _rank_variables(assignment: run_messages.Assignment) -> dict[str, str]:
    """Return the part of torch.distributed's environment contract that is known from the start."""
    return {
        "RANK": str(assignment.rank),
        "WORLD_SIZE": str(assignment.world_size),
        "LOCAL_RANK": str(assignment.local_rank),
        "LOCAL_WORLD_SIZE": str(assignment.local_world_size),
        "NODE_RANK": str(assignment.node_rank),
    }


def _show_in_main(function: Callable[..., object]) -> None:
    """Put what the script's train function uses in this process's `__main__`, where it was.

    So that what the train function saves refers to classes as `__main__.Net`, which the script
    that loads it has too, and pickling them works at all.
    """
    named: dict[str, object] = {}
    variables: dict[str, object] = {}
    for part in _parts(function):
        name, known = getattr(part, "__name__", None), getattr(part, "__globals__", {})
        in_main = getattr(part, "__module__", None) in MAIN_MODULES
        if in_main and name is not None and name == getattr(part, "__qualname__", None):
            named.setdefault(name, part)
        if known.get("__name__") in MAIN_MODULES:  # what decorates it may be of another module
            variables.update((n, value) for n, value in known.items() if not n.startswith("__"))
    vars(sys.modules["__main__"]).update(named | variables)


def _parts(function: object) -> Iterator[object]:
    """Yield a train function, and below decorators, `partial` and classes what it is made of."""
    yield function
    if isinstance(function, functools.partial):
        yield from _parts(function.func)
    if hasattr(function, "__wrapped__"):
        yield from _parts(function.__wrapped__)
    if not hasattr(function, "__globals__"):
        yield from (type(function), type(function).__call__)
