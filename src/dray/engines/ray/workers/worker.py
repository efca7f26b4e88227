"""The worker's side of the Ray engine: an actor of Ray's whose process is the worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import ray

from dray.engines.ray.workers import driver_environment, gpu_variables, sidecar
from dray.engines.ray.workers.worker_channel import DriverAddress, Hello, call
from dray.engines.rpc import lifeline
from dray.engines.rpc.actor_host import ActorHost, import_quietly
from dray.engines.rpc.titled_output import TitledStream


class RayWorker:
    """Lives in a worker process of Ray's; the worker's life is one long call of `serve`."""

    def serve(
        self,
        driver: DriverAddress,
        modules: tuple[str, ...],
        directory: str | None,
        *,
        is_agent: bool = False,
    ) -> None:
        """Serve the driver, on this process's main thread, until it says stop or goes away.

        Args:
            directory: Working directory, if one was asked for.
            is_agent: Whether it runs nothing of the user's.
        """
        if os.getpgid(0) != os.getpid():
            os.setpgid(0, 0)
        lifeline.children_die_with_me()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's raises SystemExit in users' code
        given = ray.get_runtime_context().runtime_env.get("env_vars") or {}
        gpu_variables.restore_user_variables(given)
        if not is_agent:
            _keep_output(driver)
        connection = call(driver, _hello(driver, "wire"))
        import_quietly(modules)
        ActorHost(connection, lambda begin: driver_environment.take(begin, directory)).serve()
        ray.actor.exit_actor()

    def over(self) -> None:
        """Wait behind `serve`, and so fails when Ray knows how the process has ended."""


def _hello(driver: DriverAddress, stream: str) -> Hello:
    context = ray.get_runtime_context()
    devices = {name: tuple(ids) for name, ids in context.get_accelerator_ids().items() if ids}
    return Hello(
        driver.number,
        stream,
        os.getpid(),
        context.get_node_id(),
        ray.util.get_node_ip_address(),
        devices,
    )


def _keep_output(driver: DriverAddress) -> None:
    """Have a sidecar carry this process's output to the driver."""
    out, out_of_worker = os.pipe()
    err, err_of_worker = os.pipe()
    connections = [call(driver, _hello(driver, stream)) for stream in ("stdout", "stderr")]
    fds = (out, err, *(connection.fileno() for connection in connections))
    arguments = [str(argument) for argument in (os.getpid(), *fds)]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", sidecar.__file__, *arguments],
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
    sys.stdout, sys.stderr = TitledStream(1), TitledStream(2)
