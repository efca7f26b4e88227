"""GPUs: how they are found, read from variables, asked for and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dray.accelerators.family import Family, Found
from dray.accelerators.vendors.amd import Amd
from dray.accelerators.vendors.apple import Apple
from dray.accelerators.vendors.intel import Intel
from dray.accelerators.vendors.metax import Metax
from dray.accelerators.vendors.neuron import Neuron
from dray.accelerators.vendors.nvidia import Nvidia
from dray.errors import ConfigError
from tests.support.hosts import found, nothing

FAMILIES = (Nvidia, Amd, Intel, Apple, Metax, Neuron)
FAILS = "#!/bin/sh\nexit 1\n"


# ---- every family, and Neuron cores


@pytest.mark.parametrize("family", FAMILIES)
def test_a_machine_without_devices_has_none_and_no_package_is_imported(
    family: type[Family],
) -> None:
    bad = "raise AssertionError('imported without a sign of a device')"
    stubs = dict.fromkeys(["pynvml", "amdsmi", "dpctl", "pymxsml.mxsml_extension"], bad)
    commands = {"neuron-ls": '[{"nc_count": 2}]'}
    assert nothing(family(), modules=stubs, commands=commands)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_variable_is_no_limit_and_an_empty_one_hides_everything(family: type[Family]) -> None:
    assert family().visible({}) is None
    for name in family.variables:
        for none in ("", " ", "NoDevFiles"):
            assert family().visible({name: none}) == []
        assert family().visible({name: "0"}) == ["0"]
        assert family().visible({name: " 0, 1 ,7"}) == ["0", "1", "7"]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.variables])
def test_a_device_named_twice_is_refused(family: type[Family]) -> None:
    with pytest.raises(ConfigError, match="names device 1 twice"):
        family().visible({family.variables[0]: "1,0,1"})


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.opt_outs])
def test_the_opt_out_leaves_the_variables_alone(family: type[Family]) -> None:
    for name in family.opt_outs:
        for yes in ("1", "true", "True"):
            assert family().show(["0"], {name: yes}, 4) == {}
        for no in ("0", "", "no"):
            assert family().show(["0"], {name: no}, 4) != {}


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.variables])
def test_a_list_with_a_gap_is_refused(family: type[Family]) -> None:
    for text in ("0,", "0,,1", ","):
        with pytest.raises(ConfigError, match="gap"):
            family().visible({family.variables[0]: text})


@pytest.mark.parametrize("family", [Nvidia, Metax, Neuron])
def test_ids_are_shown_in_the_order_given(family: type[Family]) -> None:
    name = family.variables[0]
    assert family().show(["0"], {}, 4) == {name: "0"}
    assert family().show(["0", "1", "7"], {name: "0,1,2,7"}, 8) == {name: "0,1,7"}
    assert family().show([], {}, 4) == {name: ""}


@pytest.mark.parametrize("family", FAMILIES)
def test_quantities(family: type[Family]) -> None:
    for fine in (0, 1, 2.0, 3, 8):
        family().check(fine, "a task")
    with pytest.raises(ConfigError, match=r"a task: 1\.5 .* is invalid; .*whole number"):
        family().check(1.5, "a task")
    if family.fractions:
        family().check(0.1, "a task")
    else:
        with pytest.raises(ConfigError, match="cannot be shared"):
            family().check(0.5, "an actor")


def test_what_frameworks_call_the_devices() -> None:
    assert {f.name: (f.torch_device, f.backend, f.jax_platform) for f in FAMILIES} == {
        "nvidia": ("cuda", "nccl", "cuda"),
        "amd": ("cuda", "nccl", "rocm"),
        "intel": ("xpu", "xccl", None),
        "apple": ("mps", "gloo", None),
        "metax": ("cuda", "nccl", None),
        "neuron": ("xla", "xla", "neuron"),
    }


# ---- NVIDIA


CARD = ("NVIDIA A100-SXM4-80GB", "GPU-aaaa", ())


def nvidia(count: int) -> dict[str, str]:
    return {**dict.fromkeys([f"dev/nvidia{i}" for i in range(count)], ""), "dev/nvidiactl": ""}


def nvml(*cards: tuple[str | bytes | None, str, Sequence[str]], driver: str = "570.1") -> str:
    """An NVML that knows cards: name, UUID, and the UUIDs of slices; a name None is a lost card."""
    return f"""
from types import SimpleNamespace
CARDS = {cards!r}
initialised = False
class NVMLError(Exception): pass
def nvmlInit():
    global initialised
    initialised = True
def nvmlShutdown():
    global initialised
    initialised = False
def nvmlDeviceGetCount():
    assert initialised
    return len(CARDS)
def nvmlDeviceGetHandleByIndex(index):
    if CARDS[index][0] is None: raise NVMLError("GPU is lost")
    return CARDS[index]
def nvmlDeviceGetName(card): return card[0]
def nvmlDeviceGetUUID(card): return card if isinstance(card, str) else card[1]
def nvmlSystemGetDriverVersion(): return {driver!r}
def nvmlDeviceGetMemoryInfo(card): return SimpleNamespace(total=80 * 2**30)
def nvmlDeviceGetMigMode(card):
    if not card[2]: raise NVMLError("Not Supported")
    return [1, 1]
def nvmlDeviceGetMaxMigDeviceCount(card): return 7
def nvmlDeviceGetMigDeviceHandleByIndex(card, index):
    if index >= len(card[2]): raise NVMLError("Not Found")
    return card[2][index]
"""


def test_nvidia_devices_are_what_nvml_says() -> None:
    cards = (CARD, ("NVIDIA A100-SXM4-80GB", "GPU-bbbb", ()))
    assert found(Nvidia(), files=nvidia(2), modules={"pynvml": nvml(*cards)}) == Found(
        count=2,
        type="A100",
        driver="570.1",
        memory_bytes=80 * 2**30,
        names=["NVIDIA A100-SXM4-80GB (GPU-aaaa)", "NVIDIA A100-SXM4-80GB (GPU-bbbb)"],
    )


@pytest.mark.parametrize("sign", [{"dev/nvidiactl": ""}, {"proc/driver/nvidia/version": "1"}])
def test_nvidia_is_asked_wherever_there_is_a_driver(sign: dict[str, str]) -> None:
    assert found(Nvidia(), files=sign, modules={"pynvml": nvml(CARD)}).count == 1


def test_nvidia_is_asked_under_wsl_where_gpus_of_all_makers_share_one_file() -> None:
    files = {"dev/dxg": ""}
    assert found(Nvidia(), files=files, modules={"pynvml": nvml(CARD)}).count == 1
    broken = ("raise ModuleNotFoundError(name='pynvml')", "raise OSError('no libnvidia-ml')")
    for stub in (nvml(), *broken):
        assert nothing(Nvidia(), files=files, modules={"pynvml": stub})


def test_nvidia_count_is_not_limited_by_the_variable() -> None:
    there = found(
        Nvidia(),
        files=nvidia(2),
        modules={"pynvml": nvml(CARD, CARD)},
        environment={"CUDA_VISIBLE_DEVICES": "0"},
    )
    assert there.count == 2


def test_nvidia_slices_are_named_but_gpus_are_counted() -> None:
    card = ("NVIDIA A100-SXM4-80GB", "GPU-aaaa", ("MIG-1", "MIG-2"))
    there = found(Nvidia(), files=nvidia(1), modules={"pynvml": nvml(card)})
    assert there.count == 1
    assert there.type == "A100"
    assert list(there.names) == ["NVIDIA A100-SXM4-80GB (GPU-aaaa, MIG-1, MIG-2)"]


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
        ("NVIDIA GeForce RTX 5090", "GeForce-RTX-5090"),
        ("GeForce GTX 1080 Ti", "GTX-1080"),
        ("NVIDIA TITAN V", "TITAN-V"),
        ("Quadro RTX 8000", "RTX-8000"),
        (b"NVIDIA H200", "H200"),
        ("", None),
    ],
)
def test_nvidia_types(name: str | bytes, type: str | None) -> None:
    stub = nvml((name, "GPU-aaaa", ()))
    assert found(Nvidia(), files=nvidia(1), modules={"pynvml": stub}).type == type


def test_an_old_nvml_without_details_still_counts() -> None:
    stub = "nvmlInit = nvmlShutdown = lambda: None\nnvmlDeviceGetCount = lambda: 3"
    there = found(Nvidia(), files=nvidia(3), modules={"pynvml": stub})
    assert (there.count, there.type, there.memory_bytes) == (3, None, None)


def test_a_lost_nvidia_gpu_is_told_of() -> None:
    stub = nvml(CARD, (None, "", ()))
    there = found(Nvidia(), files=nvidia(2), modules={"pynvml": stub})
    assert (there.count, there.type) == (2, "A100")
    assert "cannot reach the GPUs with index 1" in there.trouble


@pytest.mark.parametrize(
    ("stub", "why"),
    [
        ("def nvmlInit(): raise OSError('Driver/library version mismatch')", "version mismatch"),
        ("raise SyntaxError('made for another Python')", "another Python"),
        ("raise ModuleNotFoundError(name='pynvml')", "nvidia-ml-py is not installed"),
    ],
)
def test_without_nvml_the_files_of_nvidia_are_counted(stub: str, why: str) -> None:
    about = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   18\nDevice Minor: \t 0"
    files = {**nvidia(12), "proc/driver/nvidia/gpus/0000:01:00.0/information": about}
    there = found(Nvidia(), files=files, modules={"pynvml": stub})
    assert (there.count, there.type) == (12, "H100")
    assert why in there.trouble
    assert "counted by their files in /dev" in there.trouble


def test_an_nvidia_driver_without_devices_is_told_of() -> None:
    files = {"dev/nvidiactl": ""}
    there = found(Nvidia(), files=files, modules={"pynvml": nvml()})
    assert (there.count, there.trouble) == (
        0,
        "the NVIDIA driver is there, but no GPU that dray may use",
    )


@pytest.mark.parametrize("family", [Nvidia, Amd, Metax])
def test_minus_one_hides_everything(family: type[Family]) -> None:
    assert family().visible({"CUDA_VISIBLE_DEVICES": "-1"}) == []


@pytest.mark.parametrize("family", [Nvidia, Amd, Metax])
@pytest.mark.parametrize("text", ["all", "0-3", "0,-1", "cuda:0"])
def test_lists_that_make_no_sense_to_cuda_are_refused(family: type[Family], text: str) -> None:
    with pytest.raises(ConfigError, match="neither the number nor the UUID"):
        family().visible({family.variables[0]: text})


def test_nvidia_ids_are_texts_in_their_order() -> None:
    ids = "GPU-bbbb,GPU-aaaa,MIG-1234-5678,0"
    assert Nvidia().visible({"CUDA_VISIBLE_DEVICES": ids}) == ids.split(",")
    assert Nvidia().show(["MIG-1234-5678"], {}, 1) == {"CUDA_VISIBLE_DEVICES": "MIG-1234-5678"}


# ---- AMD


def smi(*ids: object) -> str:
    return f"""
IDS = {ids!r}
def amdsmi_init(): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return list(range(len(IDS)))
def amdsmi_get_gpu_asic_info(i): return {{"device_id": IDS[i], "market_name": f"Card {{i}}"}}
def amdsmi_get_gpu_vram_info(i): return {{"vram_size": 196592}}
def amdsmi_get_gpu_driver_info(i): return {{"driver_version": "6.10.5"}}
"""


def amd(stub: str, nodes: Sequence[str] = ()) -> dict[str, Any]:
    topology = "sys/class/kfd/kfd/topology/nodes"
    files = {f"{topology}/{i}/properties": text for i, text in enumerate(nodes)}
    return {"files": {"dev/kfd": "", **files}, "modules": {"amdsmi": stub}}


def test_amd_devices_are_what_the_library_says() -> None:
    assert found(Amd(), **amd(smi("0x74a1", "0x74a1"))) == Found(
        count=2,
        type="AMD-Instinct-MI300X-OAM",
        driver="6.10.5",
        memory_bytes=196592 * 2**20,
        names=["Card 0", "Card 1"],
    )


@pytest.mark.parametrize(
    ("device", "type"),
    [
        ("0x66a1", "AMD-Instinct-MI50"),
        ("0x738C", "AMD-Instinct-MI100"),
        (0x740C, "AMD-Instinct-MI250X-MI250"),
        ("0x75a3", "AMD-Instinct-MI355X-OAM"),
        ("0x6799", "AMD-Radeon-HD-7900"),
        ("0x679a", "AMD-Radeon-HD-7900"),
        ("0x679B", "AMD-Radeon-HD-7900"),
        ("0x1234", None),
        ("N/A", None),
        (None, None),
    ],
)
def test_amd_types(device: object, type: str | None) -> None:
    assert found(Amd(), **amd(smi(device))).type == type


@pytest.mark.parametrize(
    ("stub", "why"),
    [
        ("def amdsmi_init(): raise RuntimeError('Driver not loaded')", "Driver not loaded"),
        ("raise KeyError('ROCM_HOME')", "ROCM_HOME"),
        ("raise ModuleNotFoundError(name='amdsmi')", "amdsmi is not installed"),
    ],
)
def test_without_its_library_amd_cards_that_are_known_count(stub: str, why: str) -> None:
    nodes = ["cpu_cores_count 64\ndevice_id 0", "device_id 29857\nvendor_id 4098", "device_id 5056"]
    there = found(Amd(), **amd(stub, nodes))
    assert (there.count, there.type) == (1, "AMD-Instinct-MI300X-OAM")
    assert why in there.trouble


def test_an_amd_driver_without_devices_is_told_of() -> None:
    there = found(Amd(), **amd(smi()))
    assert there.count == 0
    assert there.trouble


ROCR, HIP, CUDA = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("environ", "visible", "shown"),
    [
        ({}, None, {ROCR: "3"}),
        ({ROCR: "1,3"}, ["1", "3"], {ROCR: "3"}),
        ({HIP: "1,3"}, ["1", "3"], {HIP: "3", ROCR: None}),
        ({CUDA: "1,3"}, ["1", "3"], {CUDA: "3"}),
        ({HIP: "1,3", ROCR: "1, 3"}, ["1", "3"], {HIP: "3", ROCR: None}),
        ({HIP: "1,3", CUDA: "0"}, ["1", "3"], {HIP: "3", ROCR: None}),
    ],
)
def test_amd_variables(
    environ: Mapping[str, str], visible: list[str] | None, shown: dict[str, str | None]
) -> None:
    assert Amd().visible(environ) == visible
    assert Amd().show(["3"], environ, 8) == shown


def test_amd_variables_that_differ_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"differ.*set only one"):
        Amd().visible({ROCR: "1,3", HIP: "0,1"})


def test_amd_devices_are_hidden_as_each_variable_wants() -> None:
    assert Amd().show([], {}, 8) == {ROCR: ""}
    assert Amd().show([], {HIP: "1,3"}, 8) == {HIP: "-1", ROCR: None}
    assert Amd().show([], {CUDA: "1,3"}, 8) == {CUDA: "-1"}


def test_amd_has_an_opt_out_for_each_variable() -> None:
    environ = {"RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES": "1"}
    assert Amd().show(["3"], environ, 8) == {}


# ---- Apple


def mac(chip: str, display: str = "Metal Support: Metal 3") -> dict[str, Any]:
    commands = {"sysctl": chip, "system_profiler": display}
    return {"directories": ["System/Library/CoreServices"], "commands": commands}


@pytest.mark.parametrize(
    ("chip", "type"),
    [
        ("Apple M1", "M1"),
        ("Apple M1 Pro", "M1-Pro"),
        ("Apple M1 Ultra", "M1-Ultra"),
        ("Apple M3 Max", "M3-Max"),
        ("Apple M4", "M4"),
        ("Apple M2 (Virtual)", "M2"),
        ("Apple processor", None),
    ],
)
def test_apple_types(chip: str, type: str | None) -> None:
    assert found(Apple(), **mac(chip)) == Found(count=1, type=type, names=[chip])


@pytest.mark.parametrize(
    "host",
    [
        mac("Intel(R) Core(TM) i9-9980HK CPU @ 2.40GHz"),
        mac("VirtualApple @ 2.50GHz"),
        mac("Apple M1", display="Chipset Model: none"),
        mac("Apple M1", display=FAILS),
        mac(FAILS),
    ],
    ids=["Intel", "translated", "no Metal", "no profiler", "no sysctl"],
)
def test_other_macs_have_no_device(host: dict[str, Any]) -> None:
    assert nothing(Apple(), **host)


def test_no_variable_hides_an_apple_device() -> None:
    assert Apple().visible({"CUDA_VISIBLE_DEVICES": ""}) is None
    assert Apple().show([], {}, 1) == {}
    assert Apple().show(["0"], {}, 1) == {}


# ---- MetaX


def mxsml(*names: str) -> str:
    return f"""
NAMES = {names!r}
def mxSmlExInit(): pass
def mxSmlExShutdown(): pass
def mxSmlExDeviceGetCount(): return len(NAMES)
def mxSmlExDeviceGetHandleByIndex(index): return index
def mxSmlExDeviceGetName(index): return NAMES[index]
"""


def metax(stub: str) -> dict[str, Any]:
    return {"files": {"dev/mxcd": ""}, "modules": {"pymxsml.mxsml_extension": stub}}


def test_metax_devices_are_what_the_library_says() -> None:
    there = found(Metax(), **metax(mxsml("MXC500", "MXC500")))
    assert there == Found(count=2, type="MXC500", names=["MXC500", "MXC500"])


@pytest.mark.parametrize(
    ("stub", "why"),
    [
        ("def mxSmlExInit(): raise OSError('no permission')", "no permission"),
        ("raise ModuleNotFoundError(name='pymxsml')", "pymxsml is not installed"),
        (mxsml(), "no GPU"),
    ],
)
def test_a_metax_driver_without_devices_is_told_of(stub: str, why: str) -> None:
    there = found(Metax(), **metax(stub))
    assert there.count == 0
    assert why in there.trouble
