"""Program: makes one JAX collective over all workers, and records when it is done.

Arguments: "dray", the numbers of workers and fits, and "killed" if rank 1 is to kill itself after
its first step. Or "plain" and the number of processes; the first process starts the others with two
more arguments, the rank and the port of the first process.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.launch import make_trainer, start_library
from benchmarks.records import record


def gather(config: dict[str, Any]) -> None:
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(np.ones(1))
    if gathered.sum() != config["workers"]:
        raise AssertionError("not all workers have taken part")
    if jax.process_index() == 0:
        record("gathered")
    step(config)


def step(config: dict[str, Any]) -> None:
    """Take one jitted step of training, on the worker's own device."""
    import jax
    from jax import numpy as jnp

    def loss(weights: Any, batch: Any) -> Any:
        return ((batch @ weights) ** 2).mean()

    @jax.jit  # type: ignore[untyped-decorator]
    def update(weights: Any, batch: Any) -> Any:
        return weights - 0.1 * jax.grad(loss)(weights, batch)

    device = jax.local_devices()[0]
    weights, batch = (jax.device_put(jnp.ones(shape), device) for shape in ((64, 1), (8, 64)))
    update(weights, batch).block_until_ready()
    if jax.process_index() == 0:
        record("stepped")


def gather_and_die(config: dict[str, Any]) -> None:
    """Kill rank 1 once, after the first step of all ranks."""
    import jax

    mark = Path(config["mark"])
    again = mark.exists()
    gather(config)
    if not again and jax.process_index() == 1:
        mark.touch()
        record("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    if not again:
        time.sleep(600)  # it ends with the attempt


def fit(workers: int, fits: int, *, killed: bool) -> None:
    """Run the function several times with dray's trainer."""
    start_library("dray")
    config = {"workers": workers, "mark": str(Path("killed").absolute())}
    for _ in range(fits):
        trainer = make_trainer(
            "dray",
            gather_and_die if killed else gather,
            workers,
            framework="jax",
            config=config,
            max_failures=int(killed),
        )
        record("called")
        trainer.fit()


def join(workers: int, rank: int, port: int) -> None:
    """Run the function once, as one of several processes without a launcher."""
    import jax

    if rank > 0:
        wait_for_port(port)
    jax.distributed.initialize(f"127.0.0.1:{port}", workers, rank)
    gather({"workers": workers})
    jax.distributed.shutdown()


def wait_for_port(port: int) -> None:
    """Wait until the first process listens.

    A connection before that is refused, and gRPC then waits a second. A median over starts with and
    without this wait would be a matter of chance.
    """
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.005)


def lead(workers: int) -> None:
    """Start the other processes, and run as the first one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, __file__, "plain", str(workers)]
    others = [subprocess.Popen([*command, str(rank), str(port)]) for rank in range(1, workers)]
    join(workers, 0, port)
    if any(other.wait() for other in others):
        sys.exit("one of the other processes failed")


if __name__ == "__main__":
    killed = "killed" in sys.argv
    library, workers, *rest = sys.argv[1], *map(int, sys.argv[2 : len(sys.argv) - killed])
    if library == "dray":
        fit(workers, *rest, killed=killed)
    elif rest:
        join(workers, *rest)
    else:
        lead(workers)
