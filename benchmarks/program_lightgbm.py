"""Program: trains with LightGBM, under a library or in plain processes that know each other.

Arguments: those of `benchmarks.stepping`.
"""

import socket
from collections.abc import Mapping
from typing import Any

import lightgbm
import numpy

from benchmarks.stepping import Config, Steps, main, names_of, side_by_side

of_library, of_training = names_of("lightgbm"), names_of()
PARAMS = {"objective": "binary", "tree_learner": "data", "num_threads": 1, "verbosity": -1}


def train(config: Config) -> None:
    params, rank = config.get("network", {}), config.get("rank", 0)
    if of_library is not None:
        rank = of_training.get_context().get_world_rank()
        params = of_library.get_network_params()
    chance = numpy.random.default_rng(rank)
    numbers = chance.normal(size=(20_000, 32))
    data = lightgbm.Dataset(numbers, numbers[:, 0] > 0)
    steps = Steps(config, rank)
    callbacks: list[Any] = [told(steps)]
    if of_library is not None:
        callbacks.insert(0, timed(steps, of_library.RayTrainReportCallback()))
    sets = {"valid_sets": [data], "valid_names": ["train"]}
    lightgbm.train({**PARAMS, **params}, data, config["steps"], callbacks=callbacks, **sets)


def told(steps: Steps) -> Any:
    """Return a callback that records the rounds."""

    def call(env: Any) -> None:
        steps.stepped()

    call.order = 30  # type: ignore[attr-defined]
    return call


def timed(steps: Steps, callback: Any) -> Any:
    """Return a callback whose time is measured."""

    def call(env: Any) -> None:
        with steps.timed():
            callback(env)

    call.order = getattr(callback, "order", 0)  # type: ignore[attr-defined]
    return call


def work(rank: int, meeting: Mapping[str, Any], config: Config) -> None:
    port = meeting["ports"][rank]
    machines = ",".join(f"127.0.0.1:{port}" for port in meeting["ports"])
    network = {"machines": machines, "num_machines": config["workers"], "local_listen_port": port}
    train({**config, "network": network, "rank": rank})


def alone(config: Config) -> None:
    held = [socket.create_server(("", 0)) for _ in range(config["workers"])]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    side_by_side(work, {"ports": ports}, config)


if __name__ == "__main__":
    main(train, alone, framework="lightgbm")
