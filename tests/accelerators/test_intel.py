"""Intel GPUs: how they are found, read from variables and shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pytest

from dray.accelerators.family import Found
from dray.accelerators.vendors.intel import Intel
from dray.errors import ConfigError
from dray.testing import FakeHost
from tests.support.hosts import found, nothing

SELECTOR, MASK = "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK"


def intel(*devices: str, stub: str | None = None, vendor: str = "0x8086") -> dict[str, Any]:
    cards = [f"sys/class/drm/card{i}/device" for i in range(len(devices))]
    files = {f"{card}/device": device for card, device in zip(cards, devices, strict=True)}
    vendors = {f"{card}/vendor": f"{vendor}\n" for card in cards}
    missing = "raise ModuleNotFoundError(name='dpctl')"
    return {
        "files": {"dev/dri/renderD128": "", **vendors, **files},
        "modules": {"dpctl": stub or missing},
    }


def dpctl(*names: str) -> str:
    """A dpctl that obeys the variables, as Level Zero does."""
    return f"""
import os
from types import SimpleNamespace
def get_devices(backend, device_type):
    assert (backend, device_type) == ("level_zero", "gpu")
    if {SELECTOR!r} in os.environ or {MASK!r} in os.environ: return []
    details = dict(driver_version="1.6", global_mem_size=2**36)
    return [SimpleNamespace(name=name, **details) for name in {names!r}]
"""


@pytest.mark.parametrize("environ", [{}, {SELECTOR: "level_zero:1"}, {MASK: "1"}])
def test_intel_devices_are_what_level_zero_says(environ: dict[str, str | None]) -> None:
    name = "Intel(R) Data Center GPU Max 1550"
    host = intel("0x0bd5", "0x0bd5", stub=dpctl(*[name] * 4))
    with FakeHost(environment=environ):
        there = found(Intel(), **host)
    assert there == Found(
        count=4,
        type="Intel-GPU-Max-1550",
        driver="1.6",
        memory_bytes=2**36,
        names=[name] * 4,
    )
    assert "dpctl" not in sys.modules


@pytest.mark.parametrize(
    ("device", "type"), [("0x0bd5", "Intel-GPU-Max-1550"), ("0x0BDA", "Intel-GPU-Max-1100")]
)
def test_without_dpctl_the_cards_for_computing_count(device: str, type: str) -> None:
    there = found(Intel(), **intel(device, device, "0x46a6"))
    assert (there.count, there.type) == (2, type)
    assert "dpctl is not installed" in there.trouble


@pytest.mark.parametrize(
    "host",
    [
        intel("0x46a6"),
        intel("0x46a6", stub=dpctl()),
        intel("0x0bd5", vendor="0x10de"),
        {"files": {"sys/class/drm/card0/device/vendor": "0x8086"}},
    ],
    ids=["laptop", "laptop with dpctl", "another maker", "no driver"],
)
def test_other_graphics_are_no_intel_devices(host: dict[str, Any]) -> None:
    assert nothing(Intel(), **host)


def test_an_intel_driver_without_devices_is_told_of() -> None:
    there = found(Intel(), **intel("0x0bd5", stub=dpctl()))
    assert (there.count, there.trouble) == (0, "Intel GPUs are there, but Level Zero finds none")


@pytest.mark.parametrize(
    ("environ", "visible"),
    [
        ({SELECTOR: "level_zero:1,3"}, ["1", "3"]),
        ({SELECTOR: "1,3"}, ["1", "3"]),
        ({SELECTOR: "*:0"}, ["0"]),
        ({SELECTOR: "level_zero:0;opencl:cpu"}, ["0"]),
        ({SELECTOR: "level_zero:0;level_zero:2"}, ["0", "2"]),
        ({SELECTOR: "level_zero:0.1"}, ["0.1"]),
        ({SELECTOR: "level_zero:gpu"}, None),
        ({SELECTOR: "*:gpu"}, None),
        ({SELECTOR: "level_zero:*"}, None),
        ({SELECTOR: "*:*"}, None),
        ({SELECTOR: "!opencl:*"}, None),
        ({SELECTOR: "opencl:cpu"}, []),
        ({SELECTOR: "*:cpu"}, []),
        ({SELECTOR: "!*:gpu"}, []),
        ({MASK: "0,2"}, ["0", "2"]),
        ({MASK: "2", SELECTOR: "level_zero:gpu"}, ["2"]),
        ({MASK: "2", SELECTOR: "level_zero:0"}, ["2"]),
    ],
)
def test_intel_variables(environ: Mapping[str, str], visible: list[str] | None) -> None:
    assert Intel().visible(environ) == visible


@pytest.mark.parametrize("text", ["level_zero:first", "!level_zero:1", "level_zero:0-3"])
def test_intel_selectors_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="does not understand"):
        Intel().visible({SELECTOR: text})


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, {SELECTOR: "level_zero:1,3"}),
        ({SELECTOR: "1,3"}, {SELECTOR: "level_zero:1,3"}),
        ({MASK: "1,3"}, {MASK: "1,3", SELECTOR: None}),
        # What the mask leaves is renumbered, so the selector must not name ids too.
        ({MASK: "1,3", SELECTOR: "level_zero:0"}, {MASK: "1,3", SELECTOR: None}),
        ({MASK: "1,3", SELECTOR: "*:gpu"}, {MASK: "1,3", SELECTOR: "*:gpu"}),
    ],
)
def test_intel_devices_are_shown_in_one_variable(
    environ: Mapping[str, str], shown: dict[str, str | None]
) -> None:
    assert Intel().show(["1", "3"], environ, 4) == shown


@pytest.mark.parametrize("environ", [{}, {MASK: "1,3"}])
def test_intel_devices_are_hidden_and_that_is_understood(environ: dict[str, str]) -> None:
    shown = Intel().show([], environ, 4)
    assert shown == {SELECTOR: "!*:gpu"}
    assert Intel().visible({SELECTOR: "!*:gpu"}) == []


def test_intel_has_an_opt_out_for_each_variable() -> None:
    assert Intel().show(["1"], {"RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK": "1"}, 4) == {}
