"""ScalingConfig says at construction what is wrong with it, and derives what a worker asks for."""

from __future__ import annotations

import dataclasses
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from dray.errors import ConfigError
from dray.train import ScalingConfig

V6E = {"use_tpu": True, "topology": "4x4", "accelerator_type": "TPU-V6E"}


@pytest.mark.parametrize(
    "workers",
    [2.5, "2", None, True, np.True_, np.float64(2), [1, 2], (1, 2, 3), (1, True), (1.5, 2)],
)
def test_num_workers_is_a_whole_number_or_two(workers: Any) -> None:
    message = r"num_workers must be a whole number, 0 .* or more, or a tuple .*, not"
    with pytest.raises(ConfigError, match=message):
        ScalingConfig(num_workers=workers)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers must be 0 .* or more, not -1"),
        ({"num_workers": (4, 2)}, r"\(least, most\) with 1 <= least <= most, not \(4, 2\)"),
        ({"num_workers": (0, 2)}, r"1 <= least <= most, not \(0, 2\)"),
        ({"num_workers": ()}, "a whole number"),
        ({"elastic_resize_monitor_interval_s": -1}, "number of seconds, 0 or more, not -1"),
        ({"elastic_resize_monitor_interval_s": "60"}, "number of seconds"),
        ({"resources_per_worker": {"cpu": 2}}, "did you mean 'CPU'.*CPU, GPU, TPU, memory"),
        ({"resources_per_worker": {"gpu": 1}}, "did you mean 'GPU'"),
        ({"resources_per_worker": {"hpu": 1}}, "did you mean 'HPU'"),
        ({"resources_per_worker": {"NEURON_CORES": 1}}, "did you mean 'neuron_cores'"),
        ({"resources_per_worker": {"CPU": -1}}, "CPU must be 0 or more"),
        ({"resources_per_worker": [("CPU", 1)]}, r"must be a dict .* not \[\('CPU', 1\)\]$"),
        ({"trainer_resources": 2}, r"must be a dict .* not 2; did you mean num_workers=2\?"),
        ({"resources_per_worker": {1: 1}}, "name must be a string"),
        ({"resources_per_worker": {"GPU": 1}}, "needs use_gpu=True"),
        ({"resources_per_worker": {"GPU": 0}, "use_gpu": True}, "contradicts itself"),
        ({"resources_per_worker": {"GPU": 1.5}, "use_gpu": True}, "whole number"),
        ({"resources_per_worker": {"TPU": 4}}, "needs use_tpu=True"),
        ({"resources_per_worker": {"TPU": 0}, "use_tpu": True}, "contradicts itself"),
        ({"resources_per_worker": {"TPU": 3}, "use_tpu": True}, "ask for 1, 2, 4, 8"),
        ({"resources_per_worker": {"HPU": 1, "NPU": 1}}, "HPU and NPU; .* of one kind"),
        ({"resources_per_worker": {"HPU": 1}, "use_gpu": True}, "of one kind"),
        ({"use_gpu": True, "use_tpu": True}, "exclude each other"),
        ({"use_gpu": "no"}, "use_gpu must be True or False, not 'no'"),
        ({"pin_workers": 2}, "pin_workers must be True or False"),
        ({"placement_strategy": "FOO"}, "one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD"),
        ({"accelerator_type": ""}, "must be text such as 'A100'"),
        ({"accelerator_type": 100}, "must be text such as 'A100'"),
        ({"accelerator_type": "TPU-V6E"}, "needs use_tpu=True"),
        ({"accelerator_type": "A100", "use_tpu": True}, "is not a TPU"),
        ({"topology": "4x4"}, "set use_tpu=True"),
        ({"use_tpu": True, "num_workers": 2}, "needs both"),
        ({"use_tpu": True, "topology": "4x4"}, "needs both"),
        ({**V6E, "num_workers": 3}, "must be a multiple of 4: .* has 4 hosts.* ask for 4"),
        ({**V6E, "num_workers": 6}, "ask for 4 or 8"),
        ({**V6E, "num_workers": (2, 8)}, "must be a multiple of 4"),
        ({**V6E, "num_workers": 4, "topology": "4x5"}, "near ones: 4x4"),
        ({**V6E, "num_workers": 4, "accelerator_type": "TPU-V9"}, "TPU-V"),
        ({**V6E, "num_workers": 4, "resources_per_worker": {"TPU": 8}}, "have 4 chips"),
        ({**V6E, "num_workers": 4, "label_selector": {"zone": "a"}}, "the slice decides"),
        ({"resources_per_worker": {"CPU": 0}}, r"asks for nothing at all.* \{\"CPU\": 0.01\}"),
        ({"resources_per_worker": {"CPU": 0, "GPU": 0}}, "asks for nothing at all"),
        ({"num_workers": 2, "label_selector": [{"zone": "a"}]}, "1 entries for 2 workers"),
        ({"num_workers": (1, 3), "label_selector": [{}, {}]}, "2 entries for 3 workers"),
        ({"label_selector": "zone"}, "a dict or a list of dicts"),
        ({"label_selector": {"zone": 1}}, "map strings to strings"),
    ],
)
def test_what_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ScalingConfig(**options)


def test_what_a_worker_asks_for() -> None:
    assert ScalingConfig(num_workers=3).total_resources == {"CPU": 3}
    assert ScalingConfig(num_workers=2, use_gpu=True).total_resources == {"GPU": 2}
    half = ScalingConfig(num_workers=3, resources_per_worker={"CPU": 0.5, "X": 2, "memory": 0})
    assert half.total_resources == {"CPU": 1.5, "X": 6}
    assert (half.num_cpus_per_worker, half.num_gpus_per_worker) == (0.5, 0)
    assert half.additional_resources_per_worker == {"X": 2}
    more = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 1})
    assert more.total_resources == {"CPU": 2, "GPU": 2}
    typed = ScalingConfig(num_workers=2, use_gpu=True, accelerator_type="A100")
    assert typed.total_resources == {"GPU": 2, "accelerator_type:A100": 0.002}
    assert typed.num_gpus_per_worker == 1
    assert ScalingConfig(resources_per_worker={"HPU": 2}).bundle == {"HPU": 2}


def test_what_a_tpu_worker_asks_for() -> None:
    def chips(**options: Any) -> tuple[float, int | None]:
        config = ScalingConfig(use_tpu=True, **options)
        return config.num_tpus_per_worker, config.tpu_slice.hosts if config.tpu_slice else None

    assert chips() == (1, None)
    assert chips(num_workers=4, topology="4x4", accelerator_type="TPU-V6E") == (4, 4)
    assert chips(num_workers=8, topology="4x4", accelerator_type="TPU-V6E") == (4, 4)
    assert chips(num_workers=4, topology="2x2x4", accelerator_type="TPU-V4") == (4, 4)
    assert chips(num_workers=3, topology="2x4", accelerator_type="TPU-V6E") == (8, 1)
    fewer = {"TPU": 2}
    assert ScalingConfig(num_workers=4, **V6E, resources_per_worker=fewer).bundle == {  # type: ignore[arg-type]
        "TPU": 2,
        "accelerator_type:TPU-V6E": 0.001,
    }


def test_a_range_of_workers() -> None:
    config = ScalingConfig(num_workers=(2, 5))
    assert (config.min_workers, config.max_workers, config.elasticity_enabled) == (2, 5, True)
    assert list(config.sizes) == [2, 3, 4, 5]
    assert config.total_resources == {"CPU": 5}
    assert list(ScalingConfig(num_workers=(4, 12), **V6E).sizes) == [4, 8, 12]  # type: ignore[arg-type]
    fixed = ScalingConfig(num_workers=3)
    assert (fixed.min_workers, fixed.max_workers, fixed.elasticity_enabled) == (3, 3, False)


def test_trainer_resources_are_deprecated_and_reserved() -> None:
    with pytest.warns(DeprecationWarning, match="trainer_resources is deprecated"):
        config = ScalingConfig(num_workers=2, trainer_resources={"CPU": 4, "GPU": 1})
    assert config.request(2).bundles == [{"CPU": 1}, {"CPU": 1}, {"CPU": 4, "GPU": 1}]
    assert config.total_resources == {"CPU": 2}
    with pytest.warns(DeprecationWarning, match="by default nothing"):
        nothing = ScalingConfig(num_workers=2, trainer_resources={"CPU": 0})
    assert nothing.request(2).bundles == [{"CPU": 1}] * 2
    with pytest.raises(ConfigError, match="GPU"):
        ScalingConfig(trainer_resources={"GPU": 1.5})


def test_any_mapping_will_do() -> None:
    asked = MappingProxyType({"CPU": 2})
    config = ScalingConfig(resources_per_worker=asked, label_selector=MappingProxyType({"a": "b"}))
    assert dataclasses.asdict(config)["resources_per_worker"] == {"CPU": 2}
    assert config.request(1).selectors == [{"a": "b"}]


def test_a_config_can_be_changed_by_replacing_fields() -> None:
    config = dataclasses.replace(ScalingConfig(num_workers=4, **V6E), num_workers=8)  # type: ignore[arg-type]
    assert config.request(8).slices is not None
    with pytest.raises(ConfigError, match="multiple of 4"):
        dataclasses.replace(config, num_workers=9)


def test_numbers_of_numpy_are_numbers() -> None:
    config = ScalingConfig(
        num_workers=np.int64(4),
        use_gpu=True,
        resources_per_worker={
            "CPU": np.int8(4),
            "GPU": np.float32(0.5),
            "memory": np.int64(2**33),
        },
        elastic_resize_monitor_interval_s=np.int32(5),
    )
    assert config.request(4).bundles == [{"CPU": 4, "GPU": 0.5, "memory": 2**33}] * 4
    assert json.loads(json.dumps(dataclasses.asdict(config)))["num_workers"] == 4
    assert list(ScalingConfig(num_workers=tuple(np.arange(1, 3))).sizes) == [1, 2]  # type: ignore[arg-type]
    for refused in (np.True_, np.float32("nan"), np.array([1, 2]), "1", 1j):
        with pytest.raises(ConfigError, match="the quantity of CPU must be"):
            ScalingConfig(resources_per_worker={"CPU": refused})  # type: ignore[dict-item]


def test_a_slice_of_one_host_goes_where_labels_say() -> None:
    one_host: Any = {"num_workers": 1, "use_tpu": True, "topology": "2x2"}
    for chosen in ({"zone": "a"}, [{"zone": "a"}]):
        config = ScalingConfig(**one_host, accelerator_type="TPU-V6E", label_selector=chosen)
        assert config.request(1).selectors == [{"zone": "a", "ray.io/tpu-pod-type": "v6e-4"}]


def test_a_type_without_an_accelerator_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"'A100' alone only chooses nodes .* Add use_gpu=True"):
        config = ScalingConfig(accelerator_type="A100")
    assert config.bundle == {"CPU": 1, "accelerator_type:A100": 0.001}
    with pytest.warns(UserWarning, match="train on CPUs"):
        ScalingConfig(accelerator_type="A100", resources_per_worker={"CPU": 2, "GPU": 0})
    ScalingConfig(accelerator_type="A100", use_gpu=True)
    ScalingConfig(accelerator_type="Intel-GAUDI", resources_per_worker={"HPU": 1})
