"""Quantities and types of accelerators that tasks and actors ask for: taken, refused, explained."""

from __future__ import annotations

from typing import Any

import pytest

import dray
from dray.errors import ConfigError, InfeasibleError
from dray.session import current_runtime
from dray.util import placement_group
from tests.support.accelerators import Looker, look

BAD = [
    ({"num_gpus": 1.5}, "1.5 GPU"),
    ({"resources": {"NPU": 1.5}}, "1.5 NPU"),
    ({"resources": {"TPU": 3}}, "1, 2, 4, 8"),
    ({"resources": {"TPU": 0.5}}, "1, 2, 4, 8"),
    ({"resources": {"HPU": 0.5}}, "cannot be shared"),
    ({"resources": {"neuron_cores": 0.5}}, "cannot be shared"),
    ({"num_gpus": -1}, "0 or more"),
    ({"num_gpus": 0.00001}, "at least 1/10000"),
]


@pytest.mark.parametrize(("asked", "message"), BAD, ids=lambda v: str(v))
def test_quantities_that_cannot_be_are_refused_at_the_call(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        dray.remote(**asked)(lambda: None)
    with pytest.raises(ConfigError, match=message):
        look.options(**asked)
    with pytest.raises(ConfigError, match=message):
        Looker.options(**asked)
    gpus = {"GPU": asked["num_gpus"]} if "num_gpus" in asked else {}
    with pytest.raises(ConfigError, match=message):
        placement_group([{**asked.get("resources", {}), **gpus}])


@pytest.mark.parametrize(("asked", "message"), BAD, ids=lambda v: str(v))
def test_they_are_refused_in_a_scaling_config(asked: dict[str, Any], message: str) -> None:
    from dray.train import ScalingConfig

    gpus = {"GPU": asked["num_gpus"]} if "num_gpus" in asked else {}
    each = {**asked.get("resources", {}), **gpus}
    with pytest.raises(ConfigError, match=message):
        ScalingConfig(num_workers=1, use_gpu=bool(gpus), resources_per_worker=each)


def test_plain_custom_resources_take_any_quantity(session: Any) -> None:
    session(num_cpus=8, resources={"special": 2})
    assert dray.get(look.options(resources={"special": 1.5}).remote())[0] == {}


def test_status_says_that_no_single_device_has_enough(session: Any) -> None:
    session(num_cpus=8, num_gpus=2)
    held = [Looker.options(num_gpus=0.6).remote() for _ in range(2)]
    dray.get([actor.look.remote() for actor in held])
    waiting = look.options(num_gpus=0.5).remote()
    status: Any = current_runtime().status()
    (entry,) = status.waiting
    assert entry.why["GPU"] == "0.5 asked, 0.8 free in all, at most 0.4 on one device"
    dray.kill(held.pop())
    assert dray.get(waiting, timeout=20)[0]["GPU"]


def test_a_type_chooses_the_node(session: Any) -> None:
    session(
        {"node_id": "a", "num_gpus": 1, "accelerator_type": "V100"},
        {"node_id": "b", "num_gpus": 1, "accelerator_type": "A100"},
    )

    @dray.remote(num_gpus=1, accelerator_type="A100")
    def where() -> str:
        return dray.get_runtime_context().get_node_id()

    assert dray.get(where.remote()) == "b"


def test_an_unknown_type_names_the_near_ones(session: Any) -> None:
    session({"num_gpus": 1, "accelerator_type": "A100"})
    with pytest.raises(InfeasibleError, match=r"did you mean .*A100"):
        look.options(num_gpus=1, accelerator_type="A10O").remote()
    with pytest.raises(InfeasibleError, match=r"did you mean Ascend910B"):
        look.options(accelerator_type="Ascend910").remote()


def test_a_node_has_a_whole_number_of_devices(session: Any) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        session(num_cpus=8, num_gpus=0.5)
