"""What lies below `dray.util` for programs that know `ray.util`."""

from __future__ import annotations

import functools
import io
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dray
import dray as ray
from dray.errors import AbsentArgumentError, AbsentError, ConfigError
from dray.util.metrics import Counter, Gauge, Histogram
from dray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)
from tests.support.gates import Gate

# The package, whose modules come when they are used.
UTIL: Any = ray.util


@ray.remote
def square(x: int) -> int:
    return x * x


@ray.remote
class Named:
    def ping(self) -> str:
        return ray.util.get_node_ip_address()


def test_results_come_as_they_are_ready(process_engine: None, gate: Gate) -> None:
    @ray.remote
    def held() -> str:
        gate.wait()
        return "held"

    refs = [held.remote(), *(square.remote(i) for i in range(3))]
    results = ray.util.as_completed(refs, chunk_size=1)
    assert sorted(next(results) for _ in range(3)) == [0, 1, 4]
    gate.open()
    assert list(results) == ["held"]
    assert list(ray.util.as_completed([])) == []
    found = ray.util.map_unordered(square, range(8), backpressure_size=2, chunk_size=1)
    assert sorted(found) == [i * i for i in range(8)]
    (ref,) = ray.util.map_unordered(square, [3], yield_obj_refs=True)
    assert ray.get(ref) == 9
    with pytest.raises(ConfigError, match="chunk_size must be 1 or more, not 0"):
        next(ray.util.as_completed(refs, chunk_size=0))


def test_state_tells_what_there_is(core_engine: str) -> None:
    state = UTIL.state
    actor = Named.options(name="listed").remote()
    assert ray.get(actor.ping.remote()) == ray.util.get_node_ip_address()
    assert "listed" in ray.util.list_named_actors()
    names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    assert "listed" in names
    (found,) = state.list_actors(filters=[("name", "=", "listed")])
    assert (found.actor_id, found["class_name"]) == (actor._actor_id, "Named")
    assert (found.state, found.get("pid") is not None, found.get("x")) == ("ALIVE", True, None)
    here = ray.get_runtime_context()
    assert (found.job_id, found.ray_namespace) == (here.get_job_id(), here.namespace)
    assert (found.num_restarts, found.is_detached, found.placement_group_id) == (0, False, None)
    assert state.get_actor(actor._actor_id) == found
    actors = state.summarize_actors()["cluster"]
    assert actors["summary"]["Named"]["class_name"] == "Named"
    assert actors["total_actors"] >= actors["summary"]["Named"]["state_counts"]["ALIVE"] >= 1
    assert {node.node_id for node in state.list_nodes()} == {node["NodeID"] for node in ray.nodes()}
    assert [node.is_head_node for node in state.list_nodes()].count(True) == 1
    group = ray.util.placement_group([{"CPU": 1}], strategy=None)
    assert group.wait()
    shown = state.get_placement_group(group.id)
    assert shown is not None
    assert (shown.state, shown.strategy) == ("CREATED", "PACK")
    ray.util.remove_placement_group(group)
    with pytest.raises(ConfigError, match="there is no field 'stat' to filter by"):
        state.list_actors(filters=[("stat", "=", "ALIVE")])


def test_tasks_are_listed_while_they_run_or_wait(process_engine: None, gate: Gate) -> None:
    state = UTIL.state

    @ray.remote(num_cpus=8)
    def held() -> None:
        gate.pass_through()

    @ray.remote
    class Holder:
        def hold(self) -> str | None:
            gate.pass_through()
            return ray.get_runtime_context().get_task_name()

    holder = Holder.remote()
    call = holder.hold.remote()
    refs = [held.remote() for _ in range(2)]
    many = [square.options(num_cpus=8, name="many").remote(i) for i in range(150)]
    gate.heard(2)
    found = state.list_tasks(filters=[("name", "=", "Held")])
    states = sorted(task.state for task in found)
    assert states == ["PENDING_NODE_ASSIGNMENT", "RUNNING"]
    tasks = state.summarize_tasks()["cluster"]
    assert (tasks["total_tasks"], tasks["total_actor_tasks"]) == (152, 1)
    assert tasks["summary"]["held"]["state_counts"] == dict.fromkeys(states, 1)
    assert tasks["summary"]["many"] == {
        "func_or_class_name": "many",
        "type": "NORMAL_TASK",
        "state_counts": {"PENDING_NODE_ASSIGNMENT": 150},
    }
    assert {(task.func_or_class_name, task.type) for task in found} == {("held", "NORMAL_TASK")}
    last = state.list_tasks(filters=[("name", "=", "many")], limit=150)[149]
    assert state.get_task(last.task_id) == last
    objects = state.summarize_objects()["cluster"]
    assert objects["objects"] >= 2
    assert objects["summary"]["disabled"]["total_objects"] == objects["total_objects"] >= 2
    [held_call] = state.list_tasks(filters=[("NAME", "=", "Holder.hold")])
    assert (held_call.state, held_call.type) == ("RUNNING", "ACTOR_TASK")
    assert (held_call.attempt_number, held_call.parent_task_id) == (0, None)
    assert state.get_worker(held_call.worker_id).pid == held_call.worker_pid
    assert held_call.actor_id == holder._actor_id
    assert state.list_actors(filters=[("class_name", "=", "Holder"), ("STATE", "=", "ALIVE")])
    gate.open()
    assert ray.get([*refs, *many, call])[-1] == "Holder.hold"


def test_processes_objects_and_programs_are_listed(process_engine: None, gate: Gate) -> None:
    state = UTIL.state

    @ray.remote
    class Keeper:
        def keep(self, refs: list[Any]) -> tuple[int, str]:
            self.refs = refs
            return os.getpid(), ray.get_runtime_context().get_worker_id()

    keeper, ref = Keeper.remote(), ray.put(bytes(1 << 18))
    pending = ray.remote(gate.pass_through).remote()
    gate.heard()
    pid, worker_id = ray.get(keeper.keep.remote([ref]))
    worker = state.get_worker(worker_id)
    assert worker is not None
    assert (worker.pid, worker.is_alive, worker.worker_type) == (pid, True, "WORKER")
    [driver] = state.list_workers(filters=[("worker_type", "=", "DRIVER")])
    assert (driver.pid, driver.ip) == (os.getpid(), ray.util.get_node_ip_address())
    held = state.get_objects(ref.hex())
    assert {(each.pid, each.type) for each in held} == {(driver.pid, "DRIVER"), (pid, "WORKER")}
    assert {(each.object_size >= 1 << 18, each.task_status) for each in held} == {
        (True, "FINISHED")
    }
    [running] = state.get_objects(pending.hex())
    assert (running.object_size, running.task_status) == (-1, "RUNNING")
    gate.open()
    assert {each.object_id for each in state.list_objects()} == {ref.hex(), pending.hex()}
    job = state.get_job(ray.get_runtime_context().get_job_id())
    assert job is not None
    assert [job] == state.list_jobs()
    assert (job.type, job.status, job["submission_id"]) == ("DRIVER", "RUNNING", None)


def test_nodes_are_chosen_by_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "0")

    @ray.remote(num_cpus=0.1)
    def here() -> str:
        return ray.get_runtime_context().get_node_id()

    def of(**labels: Any) -> set[str]:
        strategy = NodeLabelSchedulingStrategy(hard=labels)
        refs = [here.options(scheduling_strategy=strategy).remote() for _ in range(3)]
        return set(ray.get(refs))

    dray.shutdown()
    nodes = [{"node_id": n, "num_cpus": 1, "labels": {"zone": n}} for n in ("a", "b")]
    with ray.init(nodes=[*nodes, {"node_id": "none", "num_cpus": 1}]):
        assert of(zone=In("b", "c")) == of(zone="in(b, c)") == {"b"}
        assert of(zone=Exists()) <= {"a", "b"}
        assert of(zone=DoesNotExist()) == {"none"}
        assert of(zone=NotIn("a", "b")) == {"none"}
        with pytest.raises(dray.errors.InfeasibleError, match="zone"):
            of(zone=In("nowhere"))
    with pytest.raises(ConfigError, match=r"In\(...\) takes strings"):
        In()


def test_arguments_of_places_that_are_not_there() -> None:
    assert NodeAffinitySchedulingStrategy("a", soft=True, _fail_on_unavailable=False).soft  # type: ignore[call-arg]
    with pytest.raises(AbsentArgumentError, match="leave it out; soft=True says so"):
        NodeAffinitySchedulingStrategy("a", soft=True, _spill_on_unavailable=True)  # type: ignore[call-arg]
    with pytest.raises(AbsentArgumentError, match="name labels of nodes in bundle_label_selector"):
        ray.util.placement_group([{"CPU": 1}], topology_strategy={"zone": "PACK"})


def test_objects_travel_as_a_program_says(process_engine: None) -> None:
    lock = type(threading.Lock())

    @ray.remote
    def kind(value: Any) -> str:
        return type(value).__name__

    text = io.StringIO()
    good, failures = ray.util.inspect_serializability(lambda: inner, print_file=text)
    assert (good, [failure.name for failure in failures]) == (False, ["inner"])
    assert "inner in " in text.getvalue()
    for holder in (Holder(), Holder().ping, functools.partial(print, inner), lambda lock=inner: 0):
        good, failures = ray.util.inspect_serializability(holder, print_file=text)
        assert (good, {failure.obj for failure in failures}) == (False, {inner})
    assert f"<{Holder.__qualname__}, its repr() failed>" in text.getvalue()
    ray.util.inspect_serializability({"lock": inner, "big": [*range(10_000)]}, print_file=text)
    assert len(text.getvalue()) < 2000
    ray.util.register_serializer(
        lock, serializer=lambda value: None, deserializer=lambda nothing: threading.Lock()
    )
    try:
        assert ray.get(kind.remote(threading.Lock())) == "lock"
        assert ray.util.inspect_serializability(threading.Lock(), print_file=text)[0]
    finally:
        ray.util.deregister_serializer(lock)
    with pytest.raises(dray.errors.SerializationError):
        kind.remote(threading.Lock())


inner = threading.Lock()


class Holder:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = inner

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def ping(self) -> None: ...


def test_metrics_keep_their_values() -> None:
    count = Counter("requests", tag_keys=("path",)).set_default_tags({"path": "/"})
    assert isinstance(count, Counter)
    assert count.info["default_tags"] == pickle.loads(pickle.dumps(count)).info["default_tags"]
    count.inc()
    count.inc(2, tags={"path": "/x"})
    count.inc(tags={"host": "a"})  # what is no tag of it is left out
    assert count.values == {("/",): 2, ("/x",): 2}
    gauge = Gauge("level")
    gauge.set(np.float32(4))
    gauge.set(None)
    assert gauge.values == {(): 4}
    histogram = Histogram("seconds", boundaries=[1, 10])
    for value in (0.5, 1, 5, 50):
        histogram.observe(value)
    assert histogram.values == {(): [2, 1, 1]}
    assert pickle.loads(pickle.dumps(histogram)).info == histogram.info
    assert histogram.info["boundaries"] == [1, 10]
    with pytest.raises(ConfigError, match="a counter grows"):
        count.inc(-1)
    with pytest.raises(ConfigError, match="name them in tag_keys"):
        gauge.set_default_tags({"a": "b"})
    with pytest.raises(ValueError, match=r"no value for the tags \['path'\]"):
        Counter("requests", tag_keys=("path",)).inc()
    refused: list[Callable[[], object]] = [
        lambda: count.inc(1, tags={"path": 3}),  # type: ignore[dict-item]
        lambda: count.set_default_tags({"path": 3}),  # type: ignore[dict-item]
        lambda: count.inc("1"),  # type: ignore[arg-type]
        lambda: gauge.set("1"),  # type: ignore[arg-type]
        lambda: histogram.observe("1"),  # type: ignore[arg-type]
        lambda: Gauge("level", tag_keys="path"),
        lambda: Gauge("level", tag_keys=(3,)),  # type: ignore[arg-type]
    ]
    for call in refused:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ConfigError, match="boundaries must be growing"):
        Histogram("seconds")


def test_something_is_said_once() -> None:
    assert [ray.util.log_once("said") for _ in range(2)] == [True, False]
    ray.util.debug.reset_log_once("said")
    assert ray.util.log_once("said")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("from dray.util import spark", "dray.util has no spark: start Ray on Spark"),
        ("dray.util.collective.allreduce_multigpu", "did you mean allreduce?"),
        ("from dray.util.accelerators import nvidia_h10", "did you mean NVIDIA_H100?"),
        ("dray.util.state.list_logs()", "dray.util.state has no list_logs: the driver shows"),
        ("from dray.util.accelerators import tpu", "dray.util.accelerators has no tpu: ask for sl"),
    ],
)
def test_what_is_not_there_says_what_to_use(code: str, text: str) -> None:
    with pytest.raises(AbsentError) as absent:
        exec(code, {"dray": dray})
    assert text in str(absent.value)
