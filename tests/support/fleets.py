"""Sessions of many made-up nodes, on the process engine and on Ray, and what runs show in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dray
from dray.train import RunContext, UserCallback


@contextmanager
def fleet_of(
    engine: str, nodes: Sequence[dict[str, Any]], env_vars: Mapping[str, str]
) -> Iterator[None]:
    """Begin a session with nodes, as `dray.init(nodes=...)` takes them; on Ray in a cluster."""
    runtime_env = {"env_vars": dict(env_vars)}
    dray.shutdown()
    if engine == "process":
        dray.init(nodes=list(nodes), runtime_env=runtime_env)
        yield
        dray.shutdown()
        return
    from tests.support.clusters import Cluster  # and not Ray where workers need this file

    cluster = Cluster(tuple(_for_ray(node) for node in nodes))
    dray.init(engine=engine, address=cluster.address, runtime_env=runtime_env)
    yield
    dray.shutdown()
    cluster.shutdown()


def _for_ray(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node as a Ray cluster is told of it."""
    kind = {f"accelerator_type:{node['accelerator_type']}": 1}
    resources = {**node.get("resources", {}), **kind}
    return {
        "num_cpus": node["num_cpus"],
        "num_gpus": node.get("num_gpus", 0),
        "resources": resources,
        "labels": node.get("labels", {}),
    }


class Reports(UserCallback):
    """Keeps the first report of every rank."""

    def after_report(
        self, run_context: RunContext, metrics: list[dict[str, Any]], checkpoint: Any
    ) -> None:
        self.first = metrics


class Meanwhile(UserCallback):
    """Calls a function while workers hold what they have got; an error of it ends the run."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def after_report(self, *_: Any) -> None:
        self._function()


def free(*names: str) -> list[float]:
    """Return how much of some resources nobody holds; Ray tells with a delay."""
    available = dray.available_resources()
    return [available.get(name, 0) for name in names]
