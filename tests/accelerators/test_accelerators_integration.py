"""Accelerators in tasks and actors: the seed page's programs, packing, ids, variables, processes.

Nothing here has devices: hosts and nodes are simulated. What ran on hardware is in
docs/accelerators.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.errors import ConfigError, InfeasibleError
from dray.testing import FakeHost
from dray.util import placement_group
from dray.util.accelerators import AMD_INSTINCT_MI300x
from dray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.support.accelerators import Looker, look
from tests.support.gates import Gate

# The programs of the page: what to start with, what to ask for, and the variable.
PAGE: list[Any] = [
    ({"num_gpus": 2}, {"num_gpus": 1}, "GPU", "CUDA_VISIBLE_DEVICES"),
    *(
        ({"resources": {name: 2}}, {"resources": {name: 1}}, name, variable)
        for name, variable in (
            ("neuron_cores", "NEURON_RT_VISIBLE_CORES"),
            ("TPU", "TPU_VISIBLE_CHIPS"),
            ("HPU", "HABANA_VISIBLE_MODULES"),
            ("NPU", "ASCEND_RT_VISIBLE_DEVICES"),
        )
    ),
]
PROGRAM = """
import json, os, sys, dray

engine, kinds, page = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
where = {"address": "local"} if engine == "ray" else {}
dray.init(engine=engine, num_cpus=2, num_gpus=2, resources=kinds, **where)

def shown(resource, variable):
    ids = dray.get_runtime_context().get_accelerator_ids()[resource]
    return f"{resource} IDs: {ids} {variable}: {os.environ[variable]}"

for _, asked, resource, variable in page:
    @dray.remote(**asked)
    class Actor:
        def ping(self):
            return shown(resource, variable)

    @dray.remote(**asked)
    def task():
        return shown(resource, variable)

    actor = Actor.remote()
    print(dray.get(actor.ping.remote()))
    print(dray.get(task.remote()))
"""


@pytest.mark.parametrize("engine", ["process", pytest.param("ray", marks=pytest.mark.cluster)])
def test_the_programs_of_the_page(engine: str) -> None:
    """In a program of its own: a Ray that starts in this process changes its environment."""
    kinds = {name: 2 for given, *_ in PAGE for name in given.get("resources", {})}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, engine, json.dumps(kinds), json.dumps(PAGE)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if " IDs: " in line]
    assert lines == [
        f"{resource} IDs: [{i}] {variable}: {i}" for *_, resource, variable in PAGE for i in (0, 1)
    ]


AMD = """
def amdsmi_init(): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [0, 1]
def amdsmi_get_gpu_asic_info(i): return {"device_id": 0x74A1}
def amdsmi_get_gpu_vram_info(i): return {}
def amdsmi_get_gpu_driver_info(i): return {}
"""
INTEL = """
class Device:
    name, driver_version, global_mem_size = "Intel(R) Data Center GPU Max 1550", "1", 1
def get_devices(backend, device_type): return [Device, Device]
"""
CARD = {"sys/class/drm/card0/device/vendor": "0x8086", "dev/dri/renderD128": ""}
NVIDIA = {"dev/nvidia0": "", "dev/nvidia1": ""}
WITHOUT_NVML = {"pynvml": "raise ImportError('not here')"}


@pytest.mark.parametrize(
    ("host", "variable", "shown"),
    [
        ({"files": {"dev/kfd": ""}, "modules": {"amdsmi": AMD}}, "ROCR_VISIBLE_DEVICES", "{}"),
        # The page shows bare numbers, which SYCL refuses.
        ({"files": CARD, "modules": {"dpctl": INTEL}}, "ONEAPI_DEVICE_SELECTOR", "level_zero:{}"),
        ({"files": NVIDIA, "modules": WITHOUT_NVML}, "CUDA_VISIBLE_DEVICES", "{}"),
    ],
    ids=["amd", "intel", "nvidia"],
)
def test_the_programs_of_the_page_on_hosts_with_gpus(
    session: Any, host: dict[str, Any], variable: str, shown: str
) -> None:
    with FakeHost(**host):
        session(num_cpus=8)
        assert dray.cluster_resources()["GPU"] == 2
        actor = Looker.options(num_gpus=1).remote()
        ids, variables, _ = dray.get(actor.look.remote(variable))
        assert (str(ids["GPU"]), variables[variable]) == ("[0]", shown.format(0))
        ids, variables, _ = dray.get(look.options(num_gpus=1).remote(variable))
        assert (str(ids["GPU"]), variables[variable]) == ("[1]", shown.format(1))
        dray.shutdown()


def test_the_newer_variables_work_where_the_node_uses_them(session: Any) -> None:
    host: dict[str, Any] = {"files": {"dev/kfd": ""}, "modules": {"amdsmi": AMD}}
    names = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    with FakeHost(**host, environment={"HIP_VISIBLE_DEVICES": "1"}):
        session(num_cpus=8)
        assert dray.get(look.options(num_gpus=1).remote(*names))[:2] == (
            {"GPU": ["1"]},
            {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": None},
        )
        dray.shutdown()
    at_odds = FakeHost(**host, environment={names[0]: "1", names[1]: "0"})
    with at_odds, pytest.raises(ConfigError, match="differ"):
        session(num_cpus=8)


def test_every_family_of_a_host_is_offered(session: Any) -> None:
    files = {**NVIDIA, **{f"dev/davinci{i}": "" for i in range(3)}, "dev/tenstorrent/0": ""}
    with FakeHost(files=files, modules=WITHOUT_NVML):
        session(num_cpus=8)
        resources = dray.cluster_resources()
        assert (resources["GPU"], resources["NPU"], resources["TTNPU"]) == (2, 3, 1)
        ids, variables, _ = dray.get(
            look.options(num_gpus=1, resources={"NPU": 2}).remote(
                "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"
            )
        )
        assert ids == {"GPU": ["0"], "NPU": ["0", "1"]}
        assert variables == {"CUDA_VISIBLE_DEVICES": "0", "ASCEND_RT_VISIBLE_DEVICES": "0,1"}
        dray.shutdown()
        session(num_cpus=8, num_gpus=0)
        assert "GPU" not in dray.cluster_resources()
        dray.shutdown()


def test_a_variable_that_names_a_device_that_is_not_there(session: Any) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "7"}
    host = FakeHost(files=NVIDIA, modules=WITHOUT_NVML, environment=environment)
    with host, pytest.raises(ConfigError, match="names device 7, but this machine has 0, 1"):
        session(num_cpus=8)


def test_a_type_that_was_found_is_offered(session: Any) -> None:
    with FakeHost(files={"dev/kfd": ""}, modules={"amdsmi": AMD}):
        session(num_cpus=8)
        task = look.options(num_gpus=1, accelerator_type=AMD_INSTINCT_MI300x)
        assert dray.get(task.remote())[0] == {"GPU": ["0"]}
        assert dray.nodes()[0]["Labels"]["ray.io/accelerator-type"] == AMD_INSTINCT_MI300x
        dray.shutdown()


def test_a_training_worker_sees_its_own_devices(session: Any, storage: Any) -> None:
    from dray.train import DataParallelTrainer, RunConfig, ScalingConfig

    def train() -> None:
        rank = dray.train.get_context().get_world_rank()
        dray.train.report({"rank": rank, "shown": os.environ["ASCEND_RT_VISIBLE_DEVICES"]})
        return os.environ["ASCEND_RT_VISIBLE_DEVICES"]  # type: ignore[return-value]

    with FakeHost(files={f"dev/davinci{i}": "" for i in range(4)}):
        session(num_cpus=8)
        result = DataParallelTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"NPU": 2}),
            run_config=RunConfig(storage_path=str(storage)),
        ).fit()
        assert result.return_value == "0,1"
        dray.shutdown()


def test_another_package_adds_a_family(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/new-accelerator.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "my_package.py").write_text(code)
    info = tmp_path / "my_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[dray.accelerators]\nabacus = my_package:Abacus\n")
    program = """
import os, dray
dray.init()

@dray.remote(resources={"ABACUS": 2})
def look():
    ids = dray.get_runtime_context().get_accelerator_ids()["ABACUS"]
    return f"{ids} {os.environ['ABACUS_VISIBLE_DEVICES']}"

print(dray.cluster_resources()["ABACUS"], dray.get(look.remote()))
"""
    with FakeHost(files={f"dev/abacus{i}": "" for i in range(3)}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout == "3 [0, 1] 0,1\n", done.stderr


def test_four_tasks_share_a_device(session: Any, gate: Gate) -> None:
    session(num_cpus=4, num_gpus=1)

    @dray.remote(num_gpus=0.25)
    def wait() -> list[str]:
        gate.pass_through()
        return dray.get_runtime_context().get_accelerator_ids()["GPU"]

    running = [wait.remote() for _ in range(4)]
    gate.heard(4)  # all at once
    gate.open()
    assert dray.get(running) == [["0"]] * 4


def test_actors_with_fractions_are_packed(session: Any) -> None:
    session(num_cpus=8, num_gpus=3)
    actors = [Looker.options(num_gpus=0.5).remote() for _ in range(3)]
    found = [dray.get(actor.look.remote())[0]["GPU"] for actor in actors]
    assert found == [["0"], ["0"], ["1"]]
    assert str(found) == "[[0], [0], [1]]"
    assert all(type(i) is not int and isinstance(i, str) for ids in found for i in ids)


def test_the_node_is_limited_by_its_variable(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-cccc,7,GPU-aaaa")
    session(num_cpus=8, num_gpus=3)
    ids, variables, _ = dray.get(look.options(num_gpus=3).remote("CUDA_VISIBLE_DEVICES"))
    assert ids["GPU"] == ["GPU-cccc", "7", "GPU-aaaa"]
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-cccc,7,GPU-aaaa"
    dray.shutdown()
    session(num_cpus=8, num_gpus=2)
    ids, _, _ = dray.get(look.options(num_gpus=2).remote())
    assert ids["GPU"] == ["GPU-cccc", "7"]


def test_more_devices_than_the_variable_shows_are_refused(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    with pytest.raises(ConfigError, match=r"4 GPU asked .* CUDA_VISIBLE_DEVICES='1,3' shows 2"):
        session(num_cpus=8, num_gpus=4)


def test_a_variable_that_names_a_device_twice(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    with pytest.raises(ConfigError, match="twice"):
        session(num_cpus=8, num_gpus=1)


def test_a_task_without_devices_keeps_the_nodes_variable(
    session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session(num_cpus=8, num_gpus=1)
    assert dray.get(look.remote("CUDA_VISIBLE_DEVICES"))[:2] == ({}, {"CUDA_VISIBLE_DEVICES": None})


def test_a_runtime_environment_may_set_the_variable_itself(session: Any) -> None:
    session(num_cpus=8, num_gpus=2)
    task = look.options(num_gpus=1, runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": "5"}})
    ids, variables, _ = dray.get(task.remote("CUDA_VISIBLE_DEVICES"))
    assert ids == {"GPU": ["0"]}
    assert variables == {"CUDA_VISIBLE_DEVICES": "5"}


def test_a_runtime_environment_of_the_session_may_set_it_too(session: Any) -> None:
    session(num_cpus=8, num_gpus=2, runtime_env={"env_vars": {"CUDA_VISIBLE_DEVICES": "3"}})
    _, variables, _ = dray.get(look.options(num_gpus=1).remote("CUDA_VISIBLE_DEVICES"))
    assert variables == {"CUDA_VISIBLE_DEVICES": "3"}
    dray.shutdown()
    node = {"num_gpus": 2, "accelerator_type": "AMD-Instinct-MI300X-OAM"}
    session(node, runtime_env={"env_vars": {"HIP_VISIBLE_DEVICES": "1"}})
    task = look.options(num_gpus=1)
    _, variables, _ = dray.get(task.remote("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"))
    assert variables == {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": None}


def test_the_inline_engine_shows_devices_too(session: Any) -> None:
    session(num_cpus=8, engine="inline", num_gpus=2)
    shown = dray.get(look.options(num_gpus=2).remote("CUDA_VISIBLE_DEVICES"))
    assert shown[:2] == ({"GPU": ["0", "1"]}, {"CUDA_VISIBLE_DEVICES": "0,1"})
    actors = [Looker.options(num_gpus=1).remote() for _ in range(2)]
    found = [dray.get(actor.look.remote("CUDA_VISIBLE_DEVICES")) for actor in actors]
    assert [entry[1]["CUDA_VISIBLE_DEVICES"] for entry in found] == ["0", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_the_opt_out_leaves_variables_alone(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
    session(num_cpus=8, num_gpus=2)
    assert dray.get(look.options(num_gpus=1).remote("CUDA_VISIBLE_DEVICES"))[:2] == (
        {"GPU": ["0"]},
        {"CUDA_VISIBLE_DEVICES": None},
    )


@pytest.mark.parametrize(
    "asked",
    [{"num_gpus": 1}, {"num_gpus": 0.5}, {"resources": {"NPU": 1}}, {"resources": {"HPU": 1}}],
    ids=str,
)
@pytest.mark.parametrize("by", ["decorator", "options"])
def test_a_process_that_held_a_device_is_not_used_again(
    session: Any, asked: dict[str, Any], by: str
) -> None:
    session(num_cpus=8, num_gpus=1, resources={"NPU": 1, "HPU": 1})
    task: Any = look.options(**asked)
    if by == "decorator":
        task = dray.remote(**asked)(look._function)
    before = dray.get(look.remote())[2]
    pids = [dray.get(task.remote())[2] for _ in range(3)]
    after = dray.get(look.remote())[2]
    assert len({before, *pids}) == 4
    assert after not in pids


def test_max_calls_0_lets_a_process_be_used_again_and_restores_its_variables(session: Any) -> None:
    session(num_cpus=8, num_gpus=1, resources={"TPU": 4})
    chips = ("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS")
    names = ("CUDA_VISIBLE_DEVICES", *chips)
    task = look.options(num_gpus=1, resources={"TPU": 2}, max_calls=0)
    first = dray.get(task.remote(*names))
    second = dray.get(task.remote(*names))
    plain = dray.get(look.remote(*names))
    assert first == second
    assert first[1]["CUDA_VISIBLE_DEVICES"] == "0"
    assert first[1]["TPU_CHIPS_PER_HOST_BOUNDS"] == "1,2,1"
    assert plain[2] == first[2]
    assert plain[1] == dict.fromkeys(names)
    own = {"env_vars": {"TPU_VISIBLE_CHIPS": "2"}}  # with which dray's own bounds make no sense
    chosen = dray.get(look.options(resources={"TPU": 2}, runtime_env=own).remote(*chips))
    assert chosen[1] == {**dict.fromkeys(chips), "TPU_VISIBLE_CHIPS": "2"}


def test_groups_reserve_devices(session: Any) -> None:
    session(num_cpus=8, num_gpus=4)
    blocker = Looker.options(num_gpus=1).remote()
    assert dray.get(blocker.look.remote())[0] == {"GPU": ["0"]}
    group = placement_group([{"GPU": 1}, {"GPU": 2}])
    dray.get(group.ready())

    def at(bundle: int, gpus: float) -> Any:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        return look.options(num_gpus=gpus, scheduling_strategy=place)

    assert dray.get(at(0, 1).remote())[0] == {"GPU": ["1"]}
    assert dray.get(at(1, 2).remote())[0] == {"GPU": ["2", "3"]}
    assert dray.get(at(1, 0.5).remote())[0] == {"GPU": ["2"]}
    with pytest.raises(InfeasibleError):
        at(0, 2).remote()


def test_a_bundle_with_a_part_of_a_device(session: Any) -> None:
    session(num_cpus=8, num_gpus=1)
    group = placement_group([{"GPU": 0.5}])
    dray.get(group.ready())
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    assert dray.get(look.options(num_gpus=0.5, scheduling_strategy=place).remote())[0] == {
        "GPU": ["0"]
    }
    with pytest.raises(InfeasibleError):
        look.options(num_gpus=0.6, scheduling_strategy=place).remote()
