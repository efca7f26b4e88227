"""Cores of AWS Neuron: how they are found and read from the variable."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from dray.accelerators.family import Found
from dray.accelerators.vendors.neuron import Neuron
from dray.errors import ConfigError
from dray.testing import FakeHost
from tests.support.hosts import found, nothing

FAILS = "#!/bin/sh\nexit 1\n"


def neuron(answer: str, devices: int = 1) -> dict[str, Any]:
    files = {f"dev/neuron{i}": "" for i in range(devices)}
    files["sys/module/neuron/version"] = "2.26.5.0"
    return {
        "files": files,
        "directories": ["opt/aws/neuron/bin"],
        "commands": {"neuron-ls": answer},
    }


def test_neuron_cores_of_all_devices_count() -> None:
    devices = [{"neuron_device": i, "nc_count": 2, "memory_size": 2**35} for i in range(2)]
    assert found(Neuron(), **neuron(json.dumps(devices), 2)) == Found(
        count=4, type="aws-neuron-core", driver="2.26.5.0", memory_bytes=2**34
    )


def test_neuron_ls_is_found_where_amazon_installs_it() -> None:
    tool = "opt/aws/neuron/bin/neuron-ls"
    with FakeHost(files={tool: "#!/bin/sh\necho '[{\"nc_count\": 2}]'\n"}):
        os.chmod(os.path.join(os.environ["DRAY_HOST_ROOT"], tool), 0o755)
        there = Neuron().find()
    assert there is not None
    assert there.count == 2


@pytest.mark.parametrize(
    "answer",
    [FAILS, "", "[{}]", "[]", "{}", "{not json", "[1, null]", '[{"nc_count": "two"}]'],
)
def test_without_an_answer_the_files_of_neuron_devices_count(answer: str) -> None:
    there = found(Neuron(), **neuron(answer, 12))
    assert (there.count, there.type) == (12, "aws-neuron-core")
    assert "neuron-ls" in there.trouble


@pytest.mark.parametrize("answer", [FAILS, "[]", "[{}]"])
def test_the_tools_alone_are_no_neuron_device(answer: str) -> None:
    assert nothing(Neuron(), **neuron(answer, 0))


@pytest.mark.parametrize(
    ("text", "cores"),
    [("3", "3"), ("1,3", "1 3"), ("0-3", "0 1 2 3"), ("0-1, 4-5,8", "0 1 4 5 8"), ("2-2", "2")],
)
def test_neuron_ranges(text: str, cores: str) -> None:
    assert Neuron().visible({"NEURON_RT_VISIBLE_CORES": text}) == cores.split()


@pytest.mark.parametrize("text", ["3-1", "a", "0-", "-1", "0-1-2"])
def test_neuron_lists_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a list of cores"):
        Neuron().visible({"NEURON_RT_VISIBLE_CORES": text})


def test_neuron_ranges_that_overlap_are_refused() -> None:
    with pytest.raises(ConfigError, match="names device 1, 2 twice"):
        Neuron().visible({"NEURON_RT_VISIBLE_CORES": "0-2,1-3"})
