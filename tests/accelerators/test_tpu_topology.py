"""TPU slices and types of accelerators: what is valid, what follows from it, what errors say."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from dray.accelerators import type_names
from dray.accelerators.tpu_topology import GENERATIONS, Generation, Slice, head_resource
from dray.accelerators.vendors.tpu import Tpu
from dray.errors import ConfigError
from dray.testing import FakeHost, tpu_slice
from tests.support.hosts import numbered

# ---- the table


def test_every_generation_has_a_constant_and_the_other_way_round() -> None:
    constants = {kind for kind in type_names.known_types() if kind.startswith("TPU-")}
    assert {generation.accelerator_type for generation in GENERATIONS} == constants


@pytest.mark.parametrize(
    ("word", "count"),
    [("v2", 5), ("v3", 7), ("v4", 40), ("v5p", 100), ("v5litepod", 9), ("v6e", 9), ("v7x", 10)],
)
def test_number_of_topologies(word: str, count: int) -> None:
    (topologies,) = [one.topologies for one in GENERATIONS if one.word == word]
    assert len(topologies) == len(set(topologies)) == count


@pytest.mark.parametrize(
    ("topology", "kind", "chips", "per_host", "hosts", "pod_type"),
    [
        ("1x1", "TPU-V6E", 1, 1, 1, "v6e-1"),
        ("2x2", "TPU-V6E", 4, 4, 1, "v6e-4"),
        ("2x4", "TPU-V6E", 8, 8, 1, "v6e-8"),
        ("2x8", "TPU-V5LITEPOD", 16, 4, 4, "v5litepod-16"),
        ("4x4", "TPU-V6E", 16, 4, 4, "v6e-16"),
        ("16x16", "TPU-V6E", 256, 4, 64, "v6e-256"),
        ("4x4", "TPU-V2", 16, 4, 4, "v2-32"),
        ("32x32", "TPU-V3", 1024, 4, 256, "v3-2048"),
        ("2x2x1", "TPU-V4", 4, 4, 1, "v4-8"),
        ("2x2x2", "TPU-V4", 8, 4, 2, "v4-16"),
        ("4x4x4", "TPU-V4", 64, 4, 16, "v4-128"),
        ("12x8x16", "TPU-V4", 1536, 4, 384, "v4-3072"),
        ("4x4x4", "TPU-V5P", 64, 4, 16, "v5p-128"),
        ("16x16x24", "TPU-V5P", 6144, 4, 1536, "v5p-12288"),
        ("2x2x1", "TPU-V7X", 4, 4, 1, "v7x-8"),
        ("2x2x2", "TPU-V7X", 8, 4, 2, "v7x-16"),
    ],
)
def test_what_follows_from_a_topology(
    topology: str, kind: str, chips: int, per_host: int, hosts: int, pod_type: str
) -> None:
    slice = Slice.parse(topology, kind)
    assert (slice.chips, slice.chips_per_host, slice.hosts) == (chips, per_host, hosts)
    assert (slice.pod_type, head_resource(slice.pod_type)) == (pod_type, f"TPU-{pod_type}-head")
    assert slice.accelerator_type == kind


@pytest.mark.parametrize("generation", GENERATIONS)
def test_hosts_share_all_chips_evenly(generation: Generation) -> None:
    for topology in generation.topologies:
        slice = Slice.parse(topology, generation.accelerator_type)
        assert slice.hosts * slice.chips_per_host == slice.chips
        assert slice.chips_per_host in Tpu.sizes


def test_case_and_spaces_of_a_topology_do_not_matter() -> None:
    assert (
        Slice.parse(" 4X4 ", "TPU-V6E") == Slice("v6e", "4x4", 4) == Slice.parse("4x4", "TPU-V6E")
    )


# ---- what is refused, and what is said


@pytest.mark.parametrize(
    ("topology", "kind", "said"),
    [
        ("4x5", "TPU-V6E", "topology='4x5' is not a topology of TPU-V6E; near ones: 4x4, 4x8. Its"),
        (
            "4x2",
            "TPU-V6E",
            "near ones: 2x4. Its topologies are 1x1, 2x2, 2x4, 2x8, 4x4, 4x8, 8x8, 8x16",
        ),
        ("3x3", "TPU-V6E", "near ones: 2x4, "),
        ("16", "TPU-V6E", "near ones: 2x8, 4x4. "),
        ("8x4x4", "TPU-V7X", "near ones: 4x4x8. "),
        ("4*4", "TPU-V6E", "near ones: 4x4"),
        ("", "TPU-V6E", "topology='' is not a topology of TPU-V6E. Its topologies are 1x1, "),
        (
            "4x4",
            "TPU-V4",
            "near ones: 2x2x4. It has 40 topologies: 2x2x1, 2x2x2, 2x2x4, 2x4x4, and all",
        ),
        ("4x4x40", "TPU-V5P", "AxBxC of multiples of 4 up to 16x16x24"),
        ("0x4", "TPU-V6E", "near ones: "),
        ("9" * 5000, "TPU-V6E", "Its topologies are 1x1"),
        ((4, 4), "TPU-V6E", "topology must be text such as '4x4', not (4, 4)"),
        (None, "TPU-V6E", "topology must be text"),
        (
            "4x4",
            "tpu-v6e",
            "not a generation of TPUs; did you mean 'TPU-V6E'? The generations are TPU-V2, ",
        ),
        ("4x4", "v6e", "did you mean 'TPU-V6E'"),
        ("4x4", "TPU-V5E", "did you mean 'TPU-V5LITEPOD'?"),
        ("4x4", "tpu7x", "did you mean 'TPU-V7X'"),
        ("4x4", "TPU-V9", "accelerator_type='TPU-V9' is not a generation of TPUs; did you mean"),
        (
            "4x4",
            "H100",
            "accelerator_type='H100' is not a generation of TPUs. The generations are TPU-V2",
        ),
        ("4x4", "", "is not a generation of TPUs. The generations are"),
        ("4x4", None, "accelerator_type=None is not a generation of TPUs. The generations are"),
    ],
)
def test_a_slice_that_cannot_be_is_refused(topology: Any, kind: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Slice.parse(topology, kind)
    assert said in str(error.value)


def test_long_lists_of_topologies_are_not_told_whole() -> None:
    with pytest.raises(ConfigError) as error:
        Slice.parse("5x5x5", "TPU-V5P")
    assert len(str(error.value)) < 250


# ---- types of accelerators


@pytest.mark.parametrize(
    ("kind", "there", "near"),
    [
        ("a100", [], ["A100"]),
        ("gh200", ["GH200"], ["GH200"]),
        (" H100 ", [], ["H100"]),
        ("NVIDIA_H100", [], ["H100"]),
        ("GeForce RTX 4090", ["GeForce-RTX-4090"], ["GeForce-RTX-4090"]),
        ("MI300X", [], ["AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI300X-HF"]),
        ("AMD-Instinct-MI308X", [], ["AMD-Instinct-MI308X-OAM"]),
        ("ascend910b", [], ["Ascend910B"]),
        ("tpu-v6e", [], ["TPU-V6E"]),
        ("V5P", [], ["TPU-V5P"]),
        ("TPU-V5E", [], ["TPU-V5LITEPOD"]),
        ("MyGPU2", ["MyGPU"], ["MyGPU"]),
        ("A100", ["A100-80G"], []),
        ("ABACUS", [], []),
    ],
)
def test_types_that_may_have_been_meant(kind: str, there: list[str], near: list[str]) -> None:
    assert type_names.meant(kind, tuple(there)) == near


@pytest.mark.parametrize("kind", [5, None, "", " "])
def test_what_can_be_no_type(kind: object) -> None:
    with pytest.raises(ConfigError, match="accelerator_type must be text such as 'A100'"):
        type_names.check_type(kind, "accelerator_type")


# ---- simulated slices


def by_id() -> dict[str, dict[str, Any]]:
    return {node["NodeID"]: node for node in dray.nodes()}


@pytest.mark.usefixtures("session")
def test_nodes_of_a_simulated_slice() -> None:
    dray.init(engine="process", nodes=tpu_slice(" 4X4", "TPU-V6E"))
    nodes = by_id()
    assert list(nodes) == ["slice-0-0", "slice-0-1", "slice-0-2", "slice-0-3"]
    assert dray.cluster_resources()["TPU"] == 16
    for worker, node in enumerate(nodes.values()):
        published = {
            name: amount
            for name, amount in node["Resources"].items()
            if name not in ("CPU", "memory") and not name.startswith("node:")
        }
        head = {"TPU-v6e-16-head": 1} if worker == 0 else {}
        assert published == {"TPU": 4, "accelerator_type:TPU-V6E": 1, "slice-0": 1, **head}
        labels = {k: v for k, v in node["Labels"].items() if k != "ray.io/node-id"}
        assert labels == {
            "ray.io/accelerator-type": "TPU-V6E",
            "ray.io/tpu-slice-name": "slice-0",
            "ray.io/tpu-worker-id": str(worker),
            "ray.io/tpu-topology": "4x4",
            "ray.io/tpu-pod-type": "v6e-16",
        }


@dray.remote(num_cpus=0, resources={"TPU": 4})
def where() -> str:
    return dray.get_runtime_context().get_node_id()


@pytest.mark.usefixtures("session")
def test_programs_choose_among_two_slices() -> None:
    two = tpu_slice("2x2x2", "TPU-V4", name="a") + tpu_slice("2x2x2", "TPU-V4", name="b")
    dray.init(engine="process", nodes=two)
    assert dray.cluster_resources()["TPU-v4-16-head"] == 2
    place = {"ray.io/tpu-slice-name": "b", "ray.io/tpu-worker-id": "1"}
    assert dray.get(where.options(label_selector=place).remote()) == "b-1"
    head = {"TPU": 4, "TPU-v4-16-head": 1, "a": 1}
    assert dray.get(where.options(resources=head).remote()) == "a-0"


def test_a_simulated_host_publishes_what_a_real_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    (node, _) = tpu_slice("2x2x2", "TPU-V4", name="my-slice")
    gke = {
        "TPU_ACCELERATOR_TYPE": "v4-16",
        "TPU_NAME": "my-slice",
        "TPU_WORKER_ID": "0",
        "TPU_TOPOLOGY": "2x2x2",
    }
    with FakeHost(files=numbered("dev/accel{}", 4), environment=gke):
        real = Tpu().find()
    assert real is not None
    assert node["accelerator_type"] == real.type
    assert node["resources"] == {"TPU": real.count, **real.resources}
    assert node["labels"] == {"ray.io/accelerator-type": real.type, **real.labels}


def test_a_host_may_have_fewer_chips() -> None:
    nodes = tpu_slice("2x4", "TPU-V6E", chips_per_host=4, num_cpus=2)
    assert [(node["num_cpus"], node["resources"]["TPU"]) for node in nodes] == [(2, 4), (2, 4)]
    assert len(tpu_slice("2x4", "TPU-V6E")) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topology": "4x5"}, "topology='4x5' is not a topology of TPU-V6E"),
        ({"chips_per_host": 3}, "chips_per_host=3: hosts of a slice with 16 chips have 1 or 2 or "),
        ({"chips_per_host": 16}, "1 or 2 or 4 or 8"),
        ({"chips_per_host": 0}, "1 or 2 or 4 or 8"),
        ({"name": "TPU"}, "name='TPU': a slice needs a name that no resource has"),
        ({"name": ""}, "name='': a slice needs a name"),
    ],
)
def test_a_simulated_slice_that_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        tpu_slice(**{"topology": "4x4", "accelerator_type": "TPU-V6E", **options})
    assert said in str(error.value)
