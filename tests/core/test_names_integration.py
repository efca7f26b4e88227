"""Names of Ray's in tasks, actors and objects: keywords, members, generics, paths of modules."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

import dray
import dray as ray
from dray.errors import (
    AbsentArgumentError,
    AbsentNameError,
    ActorDiedError,
    ConfigError,
    GroupRemovedError,
    NameTakenError,
)
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
def double(x: int) -> int:
    return 2 * x


@ray.remote
def two() -> Iterator[int]:
    yield 1
    yield 2


@ray.remote
class Here:
    @ray.method
    def ids(self) -> dict[str, Any]:
        context = ray.get_runtime_context()
        return {
            "function": context.get_task_function_name(),
            "get": context.get(),
            "group": context.current_placement_group_id,
        }

    def fail(self) -> None:
        raise ValueError("here")


def test_functions_take_rays_keyword_names(core_engine: str) -> None:
    refs = [double.remote(i) for i in range(3)]
    assert ray.get(object_refs=refs, timeout=60) == [0, 2, 4]
    ready, rest = ray.wait(ray_waitables=refs, num_returns=3, timeout=60, fetch_local=True)
    assert (ready, rest) == (refs, [])
    ray.cancel(ray_waitable=refs[0], force=False, recursive=True)
    ref = ray.put("value", _owner=None, _tensor_transport="object_store")
    assert ray.get(ref) == "value"
    with pytest.raises(AbsentArgumentError, match=r"dray.put\(\) has no argument '_owner': a val"):
        ray.put("value", _owner=Here)


def test_what_is_defined_in_a_function_has_a_name_of_its_own(core_engine: str) -> None:
    def names() -> tuple[str | None, str]:
        context = ray.get_runtime_context()
        return context.get_task_name(), str(context.get_task_function_name())

    class Local:
        def names(self) -> tuple[str | None, str]:
            return names()

    for found, name in (
        (ray.get(ray.remote(names).remote()), "names"),
        (ray.get(ray.remote(Local).remote().names.remote()), "Local.names"),
    ):
        assert found[0] == name
        assert found[1].endswith(name)
        assert "<locals>" not in found[1]


def test_references_have_rays_members(core_engine: str) -> None:
    ref = double.remote(4)
    assert (ref.is_nil(), len(ref.binary()), ref.hex()) == (False, ref.size(), ref.binary().hex())
    assert ref.future().result(60) == 8

    async def value() -> Any:
        return await ref.as_future()

    assert asyncio.run(value()) == 8
    with pytest.raises(AbsentNameError, match=r"ObjectRef has no task_id: ask"):
        ref.task_id()


def test_generators_tell_what_is_there_without_waiting(core_engine: str) -> None:
    generator = two.remote()
    ray.wait([generator], timeout=60)
    assert generator.next_ready()
    assert not generator.is_finished()
    assert [ray.get(ref) for ref in generator] == [1, 2]
    ray.get(generator.completed())
    assert not generator.next_ready()
    assert generator.is_finished()
    with pytest.raises(AbsentNameError, match=r"dray.cancel"):
        generator.close()


def test_types_take_parameters_in_annotations() -> None:
    def annotated(
        ref: ray.ObjectRef[int],
        generator: ray.ObjectRefGenerator[int],
        actor: ray.actor.ActorHandle[Here],
    ) -> None: ...

    assert ray.actor.ActorProxy[Here].__origin__ is ray.actor.ActorHandle  # type: ignore[attr-defined]
    assert ray.ObjectRef[int].__origin__ is ray.ObjectRef  # type: ignore[attr-defined]


def test_the_runtime_context_has_rays_members(core_engine: str) -> None:
    context = ray.get_runtime_context()
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    assert context.get_node_labels() == own["Labels"]
    assert context.get_resource_ids() == context.get_accelerator_ids()
    assert context.get_session_name()
    assert context.get_temp_dir()
    assert (context.gcs_address is None) == (core_engine == "process")
    assert context.get_runtime_env_string() == "{}"
    with pytest.warns(DeprecationWarning, match="use get_node_id"):
        assert context.node_id.hex() == context.get_node_id()
    with pytest.warns(DeprecationWarning, match="use get_task_id"):
        assert context.task_id is None
    actor = Here.remote()
    found = ray.get(actor.ids.remote())
    assert found["function"].endswith("Here.ids")
    assert found["get"]["actor_id"] == actor._actor_id
    assert found["group"] is None
    assert ray.get_gpu_ids() == []


def test_a_node_has_rays_keys(core_engine: str) -> None:
    (node, *_) = ray.nodes()
    assert node["alive"] is node["Alive"] is True
    assert {"NodeManagerHostname", "NodeName", "ObjectStoreSocketName"} <= set(node)


def test_the_older_way_of_naming_a_placement_group(process_engine: None) -> None:
    group = ray.util.placement_group([{"CPU": 1}])
    actor = Here.options(
        placement_group=group, placement_group_bundle_index=0, num_cpus=1, _labels={"a": "b"}
    ).remote()
    assert ray.get(actor.ids.remote())["group"] == group.id
    with pytest.raises(ConfigError, match="both choose where to run"):
        double.options(
            placement_group=group, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
        )
    ray.util.remove_placement_group(group)


def test_options_that_are_not_there_say_what_to_use() -> None:
    assert double.options(_num_objects_per_yield=1, placement_group="default", _metadata={})
    with pytest.raises(AbsentArgumentError, match=r"tasks have no option '_num_objects_per_y.*yi"):
        double.options(_num_objects_per_yield=4)
    with pytest.raises(ConfigError, match=r"actors have no option 'max_restart'; did you mean ma"):
        Here.options(max_restart=4)
    with pytest.raises(AttributeError, match="there are no compiled graphs"):
        double.bind(1)


def test_errors_say_what_rays_say(process_engine: None) -> None:
    actor = Here.options(name="only").remote()
    with pytest.raises(ray.exceptions.ActorAlreadyExistsError) as taken:
        Here.options(name="only").remote()
    assert type(taken.value) is NameTakenError
    with pytest.raises(ray.exceptions.RayTaskError) as failed:
        ray.get(actor.fail.remote())
    assert "ValueError: here" in failed.value.traceback_str
    assert isinstance(failed.value.make_dual_exception_instance(), ValueError)
    ray.kill(actor, no_restart=True)
    with pytest.raises(ActorDiedError) as died:
        ray.get(actor.ids.remote())
    assert died.value.actor_id == actor._actor_id
    assert "dray.kill()" in died.value.error_msg
    assert (died.value.preempted, died.value.actor_init_failed) == (False, False)


def test_methods_that_ray_gives_every_actor(core_engine: str) -> None:
    @ray.remote
    class Waits:
        async def wait(self) -> int:
            return 1

    actor = Here.remote()
    assert ray.get(actor.__ray_ready__.remote(), timeout=60)
    assert ray.get(actor.__ray_call__.remote(lambda self, x: (type(self).__name__, x), 4)) == (
        "Here",
        4,
    )
    asynchronous = Waits.remote()
    ray.get(asynchronous.__ray_ready__.remote())
    for some in (actor, asynchronous):
        some.__ray_terminate__.remote()
        with pytest.raises(ray.exceptions.RayActorError):
            _call_on(some)


def _call_on(actor: ray.actor.ActorHandle) -> None:
    """Call an actor until it has ended: an async one answers beside the call that ends it."""
    while True:
        ray.get(actor.__ray_ready__.remote(), timeout=60)


def test_an_actor_that_could_not_be_made_says_so(process_engine: None) -> None:
    @ray.remote
    class Broken:
        def __init__(self) -> None:
            raise ValueError("never")

        def call(self) -> None: ...

    actor = Broken.remote()
    with pytest.raises(ray.exceptions.RayActorError) as died:
        ray.get(actor.call.remote())
    assert died.value.actor_init_failed
    assert died.value.actor_id == actor._actor_id


def test_what_ran_in_a_group_that_is_removed_has_an_error_of_its_own(process_engine: None) -> None:
    @ray.remote
    def forever() -> None:
        import threading

        threading.Event().wait()

    group = ray.util.placement_group([{"CPU": 1}])
    task = forever.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
    group.wait()
    ray.util.remove_placement_group(group)
    with pytest.raises(ray.exceptions.TaskPlacementGroupRemoved) as removed:
        ray.get(task)
    assert type(removed.value) is GroupRemovedError


def test_a_runtime_environment_is_an_object_and_a_dict(process_engine: None) -> None:
    from dray.runtime_env import RuntimeEnv, RuntimeEnvConfig

    @ray.remote
    def variable() -> str | None:
        import os

        return os.environ.get("NAMES_TEST")

    environment = RuntimeEnv(env_vars={"NAMES_TEST": "1"}, pip=None)
    assert ray.get(variable.options(runtime_env=environment).remote()) == "1"
    assert environment == {"env_vars": {"NAMES_TEST": "1"}} == environment.to_dict()
    with pytest.raises(ConfigError, match="has no env_var"):
        RuntimeEnv(env_var={})
    assert RuntimeEnvConfig(setup_timeout_seconds=5)["setup_timeout_seconds"] == 5


def test_paths_that_programs_import_from_are_there() -> None:
    assert ray.actor.ActorHandle is dray.ActorHandle
    assert ray.remote_function.RemoteFunction is type(double)
    assert ray.runtime_context.get_runtime_context is dray.get_runtime_context
    assert ray.cloudpickle.loads(ray.cloudpickle.dumps(lambda: 3))() == 3
    assert tempfile.gettempdir()
