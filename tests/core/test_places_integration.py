"""What code knows of its place: the driver, tasks, actors, and the names of nodes."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from dray.errors import ConfigError

pytestmark = pytest.mark.usefixtures("zones")


@dray.remote
def node() -> str:
    return dray.get_runtime_context().get_node_id()


def test_what_the_driver_knows_of_its_place() -> None:
    context = dray.get_runtime_context()
    assert context.get_task_id() is None
    assert context.get_actor_id() is None
    assert context.get_actor_name() is None
    assert context.get_node_id() in {n["NodeID"] for n in dray.nodes()}
    assert context.get_job_id()
    assert context.namespace
    with pytest.raises(ConfigError):
        _ = context.current_actor


def test_nodes_are_resources_by_their_addresses_and_the_first() -> None:
    addresses = {f"node:{entry['NodeManagerAddress']}" for entry in dray.nodes() if entry["Alive"]}
    named = {name for name in dray.cluster_resources() if name.startswith("node:")}
    assert named == {*addresses, "node:__internal_head__"}
    on = {dray.get(node.options(num_cpus=0, resources={name: 0.01}).remote()) for name in named}
    assert on <= {entry["NodeID"] for entry in dray.nodes()}


def test_what_a_task_knows_of_its_place() -> None:
    @dray.remote(num_cpus=0.5, resources={"special": 0.5}, name="curious")
    def look() -> dict[str, Any]:
        context = dray.get_runtime_context()
        return {
            "job": context.get_job_id(),
            "node": context.get_node_id(),
            "worker": context.get_worker_id(),
            "task": context.get_task_id(),
            "name": context.get_task_name(),
            "actor": context.get_actor_id(),
            "namespace": context.namespace,
            "resources": context.get_assigned_resources(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
        }

    driver = dray.get_runtime_context()
    first, second = dray.get([look.remote(), look.remote()])
    assert first["job"] == driver.get_job_id()
    assert first["namespace"] == driver.namespace
    assert first["node"] in {n["NodeID"] for n in dray.nodes()}
    assert first["worker"] != driver.get_worker_id()
    assert first["task"] != second["task"]
    assert first["name"] == "curious"
    assert first["actor"] is None
    assert first["resources"] == {"CPU": 0.5, "special": 0.5}
    assert first["gpus"] == []


def test_what_an_actor_knows_of_its_place() -> None:
    @dray.remote(num_cpus=1)
    class Curious:
        def look(self) -> dict[str, Any]:
            context = dray.get_runtime_context()
            return {
                "actor": context.get_actor_id(),
                "name": context.get_actor_name(),
                "task": context.get_task_id(),
                "ids": [context.get()[kind].hex() for kind in ("task_id", "actor_id")],
                "resources": context.get_assigned_resources(),
                "restarted": context.was_current_actor_reconstructed,
                "variables": context.runtime_env.get("env_vars"),
            }

    environment = {"env_vars": {"DRAY_TEST_X": "1"}}
    actor = Curious.options(name="curious", runtime_env=environment).remote()
    first, second = dray.get([actor.look.remote(), actor.look.remote()])
    assert first["actor"] == actor._actor_id
    assert first["name"] == "curious"
    assert first["task"] != second["task"]
    assert first["ids"] == [first["task"], first["actor"]]
    assert first["resources"] == {"CPU": 1}
    assert first["restarted"] is False
    assert first["variables"]["DRAY_TEST_X"] == "1"


@pytest.mark.parametrize("asked", [{"memory": 1000}, {"resources": {"special": 0.1}}])
def test_actors_that_ask_for_something_else_hold_no_cpu(asked: dict[str, Any]) -> None:
    @dray.remote(**asked)
    class Holder:
        def held(self) -> dict[str, float]:
            return dray.get_runtime_context().get_assigned_resources()

    assert dray.get(Holder.remote().held.remote()).keys() == {*asked.get("resources", asked)}
