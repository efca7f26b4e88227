"""The worker's side of the Ray engine: an actor of Ray's whose process is the worker."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import ray

from dray.engines import lifeline, wire
from dray.engines.actor_host import ActorHost
from dray.engines.ray import keeper
from dray.engines.ray.link import Hello, Meeting, call


class RayWorker:
    """Lives in a worker process of Ray's; its one method is the worker's life."""

    def serve(self, meeting: Meeting, modules: tuple[str, ...]) -> None:
        """Serves the driver, on this process's main thread, until it says stop or goes away."""
        if os.getpgid(0) != os.getpid():
            os.setpgid(0, 0)
        lifeline.children_die_with_me()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's raises SystemExit in users' code
        _keep_output(meeting)
        connection = call(meeting, _hello(meeting, "wire"))
        _import_quietly(modules)
        ActorHost(connection, _take_surroundings).serve()
        ray.actor.exit_actor()


def _hello(meeting: Meeting, stream: str) -> Hello:
    context = ray.get_runtime_context()
    devices = {name: tuple(ids) for name, ids in context.get_accelerator_ids().items() if ids}
    return Hello(
        meeting.number,
        stream,
        os.getpid(),
        context.get_node_id(),
        ray.util.get_node_ip_address(),
        devices,
    )


def _keep_output(meeting: Meeting) -> None:
    """Has a keeper carry this process's output to the driver."""
    out, out_of_worker = os.pipe()
    err, err_of_worker = os.pipe()
    connections = [call(meeting, _hello(meeting, stream)) for stream in ("stdout", "stderr")]
    fds = (out, err, *(connection.fileno() for connection in connections))
    arguments = [str(argument) for argument in (os.getpid(), *fds, int(meeting.tee))]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__, *arguments],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
    )
    process.wait()
    sys.stdout.flush()
    sys.stderr.flush()
    for source, target in ((out_of_worker, 1), (err_of_worker, 2)):
        os.dup2(source, target)
        os.close(source)
    for connection in connections:
        connection.close()
    os.close(out)
    os.close(err)
    sys.stdout, sys.stderr = _text_stream(1), _text_stream(2)


def _text_stream(fd: int) -> TextIO:
    return os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def _import_quietly(modules: tuple[str, ...]) -> None:
    """Imports what will be needed while others still start; what fails fails again, in sight."""
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)


def _take_surroundings(begin: wire.Begin) -> None:
    """Goes where the driver is, as far as this node has it.

    Environment variables are the node's own: those that a program wants to carry along are in its
    runtime environment, which Ray has made before this process began.
    """
    os.environ.update(begin.environment)
    if begin.cwd and os.path.isdir(begin.cwd):
        os.chdir(begin.cwd)
    sys.path += [entry for entry in begin.path if entry not in sys.path]
    if not _was_given("OMP_NUM_THREADS"):
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's guess; the framework's backend knows better


def _was_given(variable: str) -> bool:
    """Returns whether a variable was there when this process began."""
    try:
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(variable.encode() + b"=") for entry in given)
