"""Program: one collective of JAX over all workers, and tells when it is done.

Arguments: "dray", the number of workers and of fits; or "plain" and the number of processes, and,
for all of them but the first, which starts them, its rank and the first one's port.
"""

import socket
import subprocess
import sys
import time
from typing import Any

from benchmarks.launch import make_trainer
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


def fit(workers: int, fits: int) -> None:
    """Run the function several times, with dray's trainer."""
    for _ in range(fits):
        trainer = make_trainer(
            "dray", gather, workers, framework="jax", config={"workers": workers}
        )
        record("called")
        trainer.fit()


def join(workers: int, rank: int, port: int) -> None:
    """Run the function once, as one of several processes that nobody looks after."""
    import jax

    if rank > 0:
        wait_for_port(port)
    jax.distributed.initialize(f"127.0.0.1:{port}", workers, rank)
    gather({"workers": workers})
    jax.distributed.shutdown()


def wait_for_port(port: int) -> None:
    """Return when the first process listens.

    Who comes too early is refused, and gRPC waits a second then: a median over such starts and
    others would be a matter of luck.
    """
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.005)


def lead(workers: int) -> None:
    """Start the other processes, and be the first of them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, __file__, "plain", str(workers)]
    others = [subprocess.Popen([*command, str(rank), str(port)]) for rank in range(1, workers)]
    join(workers, 0, port)
    if any(other.wait() for other in others):
        sys.exit("one of the other processes failed")


if __name__ == "__main__":
    library, workers, *rest = sys.argv[1], *map(int, sys.argv[2:])
    if library == "dray":
        fit(workers, *rest)
    elif rest:
        join(workers, *rest)
    else:
        lead(workers)
