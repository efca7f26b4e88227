"""NPUs, HPUs and what all the newer families share: what is found, and shown to processes."""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from typing import Any

import pytest

from dray.accelerators import type_names
from dray.accelerators.detect import offers
from dray.accelerators.family import Family, Found
from dray.accelerators.vendors.ascend import Ascend
from dray.accelerators.vendors.furiosa import Furiosa
from dray.accelerators.vendors.gaudi import Gaudi
from dray.accelerators.vendors.mobilint import Mobilint
from dray.accelerators.vendors.rebellions import Rebellions
from dray.accelerators.vendors.tenstorrent import Tenstorrent
from dray.accelerators.vendors.tpu import Tpu
from dray.errors import ConfigError
from dray.testing import FakeHost
from dray.util import accelerators
from tests.support.hosts import found, nothing, numbered

FAMILIES: tuple[Family, ...] = (
    *(Tpu(), Gaudi(), Ascend(), Rebellions()),
    *(Furiosa(), Mobilint(), Tenstorrent()),
)
each = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


# ---- all of them


@each
def test_nothing_is_found_on_a_bare_host(family: Family) -> None:
    assert nothing(family)


def test_a_bare_host_takes_no_time_and_no_imports() -> None:
    stubs = ("acl", "rebel", "furiosa_smi_py", "qbruntime", "habana_frameworks")
    with FakeHost(modules=dict.fromkeys(stubs, "raise AssertionError('imported')")):
        began = time.thread_time()
        assert [family.find() for family in FAMILIES] == [None] * len(FAMILIES)
        assert time.thread_time() - began < 0.2  # it takes 2 ms
        assert not set(stubs) & set(sys.modules)


@each
def test_what_the_variable_says(family: Family) -> None:
    name = family.variables[0]
    assert family.visible({}) is None
    assert family.visible({name: ""}) == []
    assert family.visible({name: "NoDevFiles"}) == []
    assert family.visible({name: "0, 1,7"}) == ["0", "1", "7"]
    with pytest.raises(ConfigError, match="twice" if family.name != "furiosa" else "not like"):
        family.visible({name: "0,1,0" if family.name != "furiosa" else "0,gpu:1"})


@pytest.mark.parametrize("family", [Tpu(), Gaudi(), Ascend(), Rebellions(), Mobilint()])
@pytest.mark.parametrize("text", ["0,", "-1", "0-3", "abc"])
def test_a_list_that_is_not_of_numbers_is_refused(family: Family, text: str) -> None:
    with pytest.raises(ConfigError, match=f"not the number of a {family.title}|with a gap"):
        family.visible({family.variables[0]: text})


@pytest.mark.parametrize(
    "family", [f for f in FAMILIES if f.name not in ("tpu", "furiosa")], ids=lambda f: f.name
)
def test_what_a_process_is_shown(family: Family) -> None:
    name = family.variables[0]
    assert family.show(["0"], {}, 8) == {name: "0"}
    assert family.show(["0", "1", "7"], {}, 8) == {name: "0,1,7"}
    assert family.show([], {}, 8) == {name: ""}


@each
def test_the_opt_out_says_1_or_true(family: Family) -> None:
    (name,) = family.opt_outs
    for yes in ("1", "true", "TRUE"):
        assert family.show(["0"], {name: yes}, 4) == {}
    for no in ("0", "", "yes"):
        assert family.show(["0"], {name: no}, 4) != {}


@pytest.mark.parametrize(
    ("family", "allowed", "refused"),
    [
        (Tpu(), (0, 1, 2, 4, 8, 2.0), (0.5, 3, 5, 16)),
        (Ascend(), (0, 0.25, 0.5, 1, 3, 2.0), (1.5,)),
        *(
            (family, (0, 1, 2.0, 3), (0.5, 1.5))
            for family in (Gaudi(), Rebellions(), Furiosa(), Mobilint(), Tenstorrent())
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_quantities(family: Family, allowed: tuple[float, ...], refused: tuple[float, ...]) -> None:
    for quantity in allowed:
        family.check(quantity, "f.remote()")
    for quantity in refused:
        with pytest.raises(ConfigError, match=rf"f\.remote\(\): {quantity} {family.resource} "):
            family.check(quantity, "f.remote()")


@pytest.mark.parametrize(
    ("family", "package", "files"),
    [
        (Ascend(), "acl", numbered("dev/davinci{}", 2)),
        (Rebellions(), "rebel", numbered("dev/rbln{}", 2)),
        (Mobilint(), "qbruntime", numbered("dev/aries{}", 2)),
        (Furiosa(), "furiosa_smi_py", {"dev/rngd/npu0mgmt": ""}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("source", ["raise OSError('no libc++')", "import not_there", "", "1 +"])
def test_a_broken_package_is_trouble_but_no_error(
    family: Family, package: str, files: dict[str, str], source: str
) -> None:
    answer = found(family, files=files, modules={package: source})
    assert f"{package} fails" in answer.trouble
    assert answer.count == (0 if family.name == "furiosa" else 2)


# ---- Gaudi


def gaudi(count: int, vendor: str = "0x1da3", says: str = "GAUDI2") -> dict[str, str]:
    return {
        **numbered("dev/accel/accel{}", count),
        **numbered("dev/accel/accel_controlD{}", count),
        **numbered("sys/class/accel/accel{}/device/vendor", count, vendor),
        **numbered("sys/class/accel/accel{}/device/device_type", count, says),
    }


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ("GAUDI", "Intel-GAUDI"),
        ("GAUDI2", "Intel-GAUDI2"),
        ("GAUDI SEC", "Intel-GAUDI"),
        ("", None),
    ],
)
def test_gaudis_are_found(says: str, kind: str | None) -> None:
    answer = found(Gaudi(), files=gaudi(8, says=says))
    assert (answer.count, answer.type) == (8, kind)


def test_gaudis_of_older_drivers_are_found() -> None:
    files = {
        **numbered("dev/hl{}", 8),
        **numbered("dev/hl_controlD{}", 8),
        "sys/class/habanalabs/hl0/device_type": "GAUDI",
    }
    assert found(Gaudi(), files=files) == Found(count=8, type="Intel-GAUDI")


def modules(*ids: str) -> dict[str, str]:
    return {f"sys/class/accel/accel{i}/device/module_id": says for i, says in enumerate(ids)}


@pytest.mark.parametrize("given", [None, 2, 4, 5])
def test_gaudis_are_called_by_the_numbers_of_their_modules(given: int | None) -> None:
    with FakeHost(files={**gaudi(4), **modules("6", "7", "4", "5")}):
        offered = offers({} if given is None else {"HPU": given}, {})["HPU"]
    expected = {None: "4567", 2: "45", 4: "4567", 5: "01234"}  # more than there are are made up
    assert offered.ids == (*expected[given],)
    assert offered.show(("4", "5"), {}) == {"HABANA_VISIBLE_MODULES": "4,5"}


@pytest.mark.parametrize("says", [("0", "0"), ("0", ""), ("0", "N/A")])
def test_gaudis_are_counted_where_the_driver_does_not_number_their_modules(
    says: tuple[str, str],
) -> None:
    assert found(Gaudi(), files={**gaudi(2), **modules(*says)}).ids == ()


def test_gaudi_and_tpu_are_not_taken_for_each_other() -> None:
    assert nothing(Tpu(), files=gaudi(8))
    tpu = {
        **numbered("dev/accel{}", 4),
        **numbered("sys/class/accel/accel{}/device/vendor", 4, "0x1ae0"),
    }
    assert nothing(Gaudi(), files=tpu)
    assert nothing(Gaudi(), files=gaudi(1, vendor="0x8086"))  # the NPU of a laptop


@pytest.mark.parametrize(("used", "kind"), [(True, "Intel-GAUDI3"), (False, None)])
def test_the_library_tells_the_type_if_the_program_uses_it(used: bool, kind: str | None) -> None:
    hpu = f"def is_initialized(): return {used}\ndef get_device_name(): return 'GAUDI3'"
    with FakeHost(files=gaudi(2, says=""), modules={"habana_frameworks.torch.hpu": hpu}):
        assert Gaudi().find() == Found(count=2)
        assert "habana_frameworks" not in sys.modules
        importlib.import_module("habana_frameworks.torch.hpu")
        assert Gaudi().find() == Found(count=2, type=kind)


# ---- Ascend


def acl(count: int, code: int = 0, soc: str = "'Ascend910B'") -> dict[str, str]:
    return {
        "acl": f"from . import rt\ndef get_soc_name(): return {soc}",
        "acl.rt": f"def get_device_count(): return {count}, {code}",
    }


def test_ascends_are_counted_by_their_files() -> None:
    files = {**numbered("dev/davinci{}", 64), "dev/davinci_manager": ""}
    assert found(Ascend(), files=files) == Found(count=64)


def test_cann_tells_of_ascends() -> None:
    files = numbered("dev/davinci{}", 8)
    assert found(Ascend(), files=files, modules=acl(4)) == Found(count=4, type="Ascend910B")
    assert found(Ascend(), files=files, modules=acl(8, soc="None")) == Found(count=8)
    assert found(Ascend(), files=files, modules=acl(8, soc="1 / 0")) == Found(count=8)


def test_cann_is_asked_without_files_only_if_it_is_imported() -> None:
    assert nothing(Ascend(), modules=acl(4))
    with FakeHost(modules=acl(4)):
        importlib.import_module("acl")
        assert Ascend().find() == Found(count=4, type="Ascend910B")


def test_what_the_variable_hides_is_counted() -> None:
    files = numbered("dev/davinci{}", 8)
    environment = {"ASCEND_RT_VISIBLE_DEVICES": "6,7"}
    assert found(Ascend(), files=files, modules=acl(2), environment=environment).count == 8


def test_ascends_that_cann_does_not_see_are_trouble() -> None:
    files = numbered("dev/davinci{}", 2)
    answer = found(Ascend(), files=files, modules=acl(0))
    assert answer.count == 0
    assert answer.trouble == "dev/davinci0 is there, but acl sees no Ascend NPU"
    answer = found(Ascend(), files=files, modules=acl(0, code=507899))
    assert answer.count == 2
    assert "507899" in answer.trouble


def test_ascends_are_shown_in_ascending_order() -> None:
    shown = Ascend().show(["10", "2", "0"], {}, 16)
    assert shown == {"ASCEND_RT_VISIBLE_DEVICES": "0,2,10"}


# ---- Rebellions


def test_rebellions_are_found() -> None:
    rebel = "def device_count(): return 2\ndef get_npu_name(): return 'RBLN-CA02'"
    files = numbered("dev/rbln{}", 2)
    answer = found(Rebellions(), files=files, modules={"rebel": rebel})
    assert answer == Found(count=2, type="RBLN-CA02")
    assert found(Rebellions(), files=files) == Found(count=2)
    assert nothing(Rebellions(), modules={"rebel": rebel})


def test_rebellions_that_do_not_answer_are_trouble() -> None:
    rebel = "def device_count(): return 0\ndef get_npu_name(): return None"
    answer = found(Rebellions(), files=numbered("dev/rbln{}", 1), modules={"rebel": rebel})
    assert (answer.count, answer.type) == (0, None)
    assert "rebel sees no Rebellions NPU" in answer.trouble


# ---- FuriosaAI

FURIOSA = """
ready = False
def init():
    global ready
    if ready: raise RuntimeError("twice")
    ready = True
class Device:
    def device_info(self): return self
    def arch(self): return {arch}
def list_devices():
    assert ready
    return [Device()] * {count}
"""


def furiosa(arch: str = "'Arch.Rngd'", count: int = 2) -> dict[str, str]:
    return {"furiosa_smi_py": FURIOSA.format(arch=arch, count=count)}


@pytest.mark.parametrize("sign", ["dev/rngd/npu0mgmt", "dev/rngd0", "dev/npu0"])
def test_furiosas_are_found(sign: str) -> None:
    answer = found(Furiosa(), files={sign: ""}, modules=furiosa())
    assert answer == Found(count=2, type="FURIOSA_RNGD")


def test_the_library_of_furiosa_is_started_once() -> None:
    with FakeHost(files={"dev/rngd0": ""}, modules=furiosa()):
        assert Furiosa().find() == Furiosa().find() == Found(count=2, type="FURIOSA_RNGD")


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        *(("'Arch.Rngd'", "FURIOSA_RNGD"), ("'rngd+'", "FURIOSA_RNGDPLUS")),
        *(("'Arch.Rngd-S'", "FURIOSA_RNGDS"), ("'RNGD_MAX'", "FURIOSA_RNGDMAX")),
        *(("None", None), ("1 / 0", None)),
    ],
)
def test_the_type_of_a_furiosa(arch: str, kind: str | None) -> None:
    assert found(Furiosa(), files={"dev/rngd0": ""}, modules=furiosa(arch)).type == kind


def test_furiosas_that_do_not_answer_are_trouble() -> None:
    with_library = found(Furiosa(), files={"dev/rngd0": ""}, modules=furiosa(count=0))
    assert with_library.trouble == "dev/rngd0 is there, but furiosa_smi_py sees no device"
    without = found(Furiosa(), files={"dev/rngd0": ""})
    assert without.trouble == "dev/rngd0 is there, but furiosa_smi_py is not installed"
    assert nothing(Furiosa(), files={"dev/npu0": ""})  # another vendor's


def test_the_variable_of_furiosa() -> None:
    family = Furiosa()
    assert family.visible({"FURIOSA_DEVICES": "npu:3, 5,npu:0:0-3"}) == ["3", "5", "0"]
    assert family.visible({"FURIOSA_DEVICES": "npu:0:0-3,npu:0:4-7"}) == ["0"]
    assert family.show(["0", "3"], {}, 4) == {"FURIOSA_DEVICES": "npu:0,npu:3"}
    assert family.show([], {}, 4) == {"FURIOSA_DEVICES": ""}


# ---- Mobilint


def test_mobilints_are_found() -> None:
    aries, regulus = numbered("dev/aries{}", 2), {"dev/regulus-npu0": ""}
    assert found(Mobilint(), files=aries) == Found(count=2, type="MOBILINT_ARIES")
    assert found(Mobilint(), files=regulus) == Found(count=1, type="MOBILINT_REGULUS")
    assert found(Mobilint(), files={**aries, **regulus}).count == 3
    runtime = {"qbruntime": "def get_available_device_numbers(): return [0, 1, 2, 3]"}
    assert found(Mobilint(), files=aries, modules=runtime).count == 4
    with FakeHost(modules=runtime):
        assert Mobilint().find() is None
        importlib.import_module("qbruntime")
        assert Mobilint().find() == Found(count=4)


# ---- Tenstorrent


def test_tenstorrents_are_found() -> None:
    files = {**numbered("dev/tenstorrent/{}", 4), "sys/module/tenstorrent/version": "2.3.0\n"}
    answer = found(Tenstorrent(), files=files, directories=["dev/tenstorrent/by-id"])
    assert answer == Found(count=4, driver="2.3.0")
    assert nothing(Tenstorrent(), directories=["dev/tenstorrent"])


# ---- constants


def test_constants() -> None:
    assert len(accelerators.__all__) == len(set(accelerators.__all__)) == 62
    assert {getattr(accelerators, name) for name in accelerators.__all__} == set(
        type_names.known_types()
    )
    expected = {
        "NVIDIA_TESLA_V100": "V100",
        "NVIDIA_A100_80G": "A100-80G",
        "NVIDIA_L40S": "L40S",
        "NVIDIA_GB300": "GB300",
        "NVIDIA_RTX_PRO_6000": "RTX-PRO-6000",
        "INTEL_MAX_1550": "Intel-GPU-Max-1550",
        "INTEL_GAUDI": "Intel-GAUDI",
        "AMD_INSTINCT_MI250": "AMD-Instinct-MI250X-MI250",
        "AMD_INSTINCT_MI308x": "AMD-Instinct-MI308X-OAM",
        "AMD_INSTINCT_MI355x": "AMD-Instinct-MI355X-OAM",
        "AWS_NEURON_CORE": "aws-neuron-core",
        "GOOGLE_TPU_V5LITEPOD": "TPU-V5LITEPOD",
        "HUAWEI_NPU_910B4": "Ascend910B4",
        "METAX_C550": "MXC550",
        "FURIOSA_RNGD": "FURIOSA_RNGD",
        "MOBILINT_REGULUS": "MOBILINT_REGULUS",
        "APPLE_M2_ULTRA": "M2-Ultra",
        "APPLE_SILICON": "Apple-Silicon",
    }
    assert {name: getattr(accelerators, name) for name in expected} == expected


def test_a_star_import_takes_all_constants_and_warns_of_none() -> None:
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec("from dray.util.accelerators import *", names)
    assert names.keys() - {"__builtins__"} == set(accelerators.__all__)


def test_a_constant_that_was_renamed() -> None:
    with pytest.warns(DeprecationWarning, match="NVIDIA_TESLA_A100 is now called NVIDIA_A100"):
        assert accelerators.NVIDIA_TESLA_A100 == "A100"


def test_a_constant_that_is_none() -> None:
    with pytest.raises(AttributeError, match=r"did you mean .*NVIDIA_H100"):
        _ = accelerators.NVIDIA_H1000
    with pytest.raises(AttributeError, match=r"'dray\.util\.accelerators' has no attribute 'Q'$"):
        _ = accelerators.Q
