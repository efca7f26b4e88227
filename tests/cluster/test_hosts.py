"""A cluster of two hosts that share a kernel and a directory, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gates import until
from tests.support.separate_hosts import OWN, Hosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

BESIDE = """
import sys

import dray
from dray.errors import WorkerGroupError
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig

import beside


def train():
    return beside.ANSWER


def fit():
    scaling = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
    run = RunConfig(storage_path=sys.argv[2])
    return DataParallelTrainer(train, scaling_config=scaling, run_config=run).fit().return_value


dray.init(address=sys.argv[1])
try:
    fit()
except WorkerGroupError as e:
    print(e)
dray.shutdown()
dray.init(address=sys.argv[1], runtime_env={"working_dir": "."})
print("answer", fit())
"""

UNTIL_CUT = """
import sys
import time

import torch.distributed

import dray.train
from dray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer


def train():
    import socket

    hosts = [None] * 2
    torch.distributed.all_gather_object(hosts, socket.gethostname())
    before = dray.train.get_checkpoint()
    step = before.get_metadata()["step"] + 1 if before else 0
    last = step + 2 if before else 10_000
    for step in range(step, last):
        time.sleep(0.05)
        torch.distributed.barrier()
        checkpoint = None
        if dray.train.get_context().get_world_rank() == 0:
            with dray.train.checkpoint_dir() as path:
                open(f"{path}/file", "w").close()
            checkpoint = Checkpoint.from_directory(path)
            checkpoint.set_metadata({"step": step, "hosts": hosts})
        dray.train.report({"step": step}, checkpoint)
    return before and before.get_metadata()["hosts"], hosts


dray.init(address=sys.argv[1])
result = TorchTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2, placement_strategy="SPREAD"),
    run_config=RunConfig(name="run", storage_path=sys.argv[2], failure_config=FailureConfig(1)),
).fit()
print("hosts", *map(sorted, result.return_value))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(tmp_path_factory.mktemp("hosts")) as both:
        yield both


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a program."""
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_a_module_beside_the_script_that_the_other_host_lacks(
    hosts: Hosts, folder: Path, storage: Path
) -> None:
    (folder / "beside.py").write_text("ANSWER = 42\n")
    (folder / "program.py").write_text(BESIDE)
    output = hosts.start_program(folder, str(storage)).output()
    assert re.search(r"rank \d failed: ModuleNotFoundError: No module named 'beside'", output)
    assert f"this program has it in {OWN}/project/beside.py" in output
    assert f"dray.init(runtime_env={{'working_dir': '{OWN}/project'}})" in output
    assert "answer 42" in output


def test_it_goes_on_without_a_host_whose_cable_is_cut(
    hosts: Hosts, folder: Path, storage: Path
) -> None:
    (folder / "program.py").write_text(UNTIL_CUT)
    program = hosts.start_program(folder, str(storage))
    until(lambda: any(storage.glob("run/checkpoint_*")) or not program.is_running())
    hosts.cut()
    assert "hosts ['far', 'near'] ['near', 'near']" in program.output()
