"""What JAX runs on: the platform of its workers' accelerators, GPUs that are shared, TPU slices.

JAX is never used in this process: see test_jax_integration.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dray.errors import ConfigError
from dray.train import RunConfig, ScalingConfig
from dray.train.jax import JaxConfig, JaxTrainer
from tests.support.programs import run, write

pytest.importorskip("jaxlib", reason="JAX is not installed")


PLATFORMS = """
import json
import dray
from dray.errors import ConfigError
from dray.testing import FakeHost
from dray.train.jax import JaxConfig, JaxTrainer

def platforms():
    return os.environ.get("JAX_PLATFORMS")

def ask(config, **scaling):
    trainer = JaxTrainer(
        platforms,
        jax_config=config,
        scaling_config=ScalingConfig(num_workers=1, **scaling),
        run_config=RunConfig(storage_path=os.environ["STORAGE"]),
    )
    try:
        return trainer.fit().return_value
    except ConfigError as error:
        return "refused" if "pip install 'jax[tpu]'" in str(error) else str(error)

# What JAX's support for these is recognised by; that for TPUs is not there.
PLUGINS = {"jax_cuda12_plugin": "", "jax_rocm60_plugin": ""}

hosts = {
    "nvidia": ({"dev/nvidia0": ""}, {"pynvml": "raise ImportError"}, {"use_gpu": True}),
    "amd": ({"dev/kfd": ""}, {"amdsmi": AMD}, {"use_gpu": True}),
    "gaudi": ({"dev/accel/accel0": ""}, {}, {"resources_per_worker": {"HPU": 1}}),
    "none": ({}, {}, {}),
}
answers = {}
for name, (files, modules, scaling) in hosts.items():
    with FakeHost(files=files, modules={**modules, **PLUGINS}):
        dray.init(num_cpus=2, resources={"HPU": 1} if name == "gaudi" else None)
        configs = (None, JaxConfig(use_gpu=False), JaxConfig(use_gpu=True), JaxConfig(use_tpu=True))
        answers[name] = [ask(config, **scaling) for config in configs]
        dray.shutdown()
print("answers", json.dumps(answers))
"""
AMD = """
def amdsmi_init(): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return [0]
def amdsmi_get_gpu_asic_info(handle): return {"market_name": "AMD Instinct MI300X"}
"""


def test_the_platform_is_that_of_the_workers_accelerators(tmp_path: Path) -> None:
    code = f"AMD = {AMD!r}\n{PLATFORMS}"
    done = run(write(tmp_path / "program.py", code), tmp_path, DRAY_ENGINE="process")
    assert "answers" in done.stdout, done.stderr
    tpu, cuda = "refused", "cuda,cpu"
    assert eval(done.stdout.partition("answers")[2].replace("null", "None")) == {
        "nvidia": [cuda, "cpu", cuda, tpu],
        "amd": ["rocm,cpu", "cpu", "rocm,cpu", tpu],
        "gaudi": [None, None, cuda, tpu],  # JAX does not know them: a plugin may
        "none": ["cpu", "cpu", cuda, tpu],
    }


SLICES = """
import json
from pathlib import Path
import dray
from dray.testing import tpu_slice
from dray.train.jax import JaxTrainer

NAMES = ("COORDINATOR_ADDRESS", "PORT", "NUM_SLICES", "SLICE_ID")

def train():
    import jax
    rank = dray.train.get_context().get_world_rank()
    assert jax.process_index() == rank and jax.process_count() > 1
    found = [os.environ.get("MEGASCALE_" + name) for name in NAMES]
    Path(os.environ["STORAGE"], str(rank)).write_text(json.dumps(found))

def ask(workers, **variables):
    variables["JAX_PLATFORMS"] = "cpu"  # there are no chips
    JaxTrainer(
        train,
        scaling_config=ScalingConfig(
            num_workers=workers, use_tpu=True, topology="2x2x2", accelerator_type="TPU-V4"
        ),
        run_config=RunConfig(
            storage_path=os.environ["STORAGE"], worker_runtime_env={"env_vars": variables}
        ),
    ).fit()
    return [
        json.loads(Path(os.environ["STORAGE"], str(rank)).read_text())
        for rank in range(workers)
    ]

dray.init(nodes=[host for name in "ba" for host in tpu_slice("2x2x2", "TPU-V4", name=name)])
print("one", ask(2))
print("two", ask(4))
print("own", ask(4, MEGASCALE_PORT="9000", MEGASCALE_NUM_SLICES="7"))
os.environ.update({"MEGASCALE_" + name: "7" for name in NAMES})  # as pods of several slices have
print("pod", ask(2))
"""


def test_several_slices_are_described_to_their_workers(tmp_path: Path) -> None:
    done = run(write(tmp_path / "program.py", SLICES), tmp_path, DRAY_ENGINE="process")
    assert "pod" in done.stdout, done.stderr
    names = ("one ", "two ", "own ", "pod ")
    lines = [line for line in done.stdout.splitlines() if line.startswith(names)]
    one, two, own, pod = (eval(line[4:]) for line in lines)
    assert one == pod == [[None] * 4] * 2
    assert two == [["127.0.0.1", "8081", "2", str(rank // 2)] for rank in range(4)]
    assert own == [["127.0.0.1", "9000", "2", str(rank // 2)] for rank in range(4)]


@pytest.mark.parametrize("kind", ["A100", "AMD-Instinct-MI300X-OAM"])
def test_a_shared_gpu_and_jax(session: Any, storage: Path, kind: str) -> None:
    """JAX connects GPUs by NCCL or RCCL alone, so there is nothing to fall back on."""
    session({"num_cpus": 4, "num_gpus": 2, "accelerator_type": kind})

    def trainer(part: float, use_gpu: bool | None = None, **variables: str) -> JaxTrainer:
        return JaxTrainer(
            lambda: os.environ["JAX_PLATFORMS"],
            jax_config=JaxConfig(use_gpu=use_gpu),
            scaling_config=ScalingConfig(
                num_workers=2, use_gpu=True, resources_per_worker={"GPU": part}
            ),
            run_config=RunConfig(storage_path=storage, worker_runtime_env={"env_vars": variables}),
        )

    for refused in (trainer(0.5), trainer(0.5, JAX_PLATFORMS="gpu")):
        for begin in (refused.plan, refused.fit):
            with pytest.raises(ConfigError, match="share a GPU, but JAX connects them with NCCL"):
                begin()
    assert trainer(0.6).plan().backend in ("JAX on cuda,cpu", "JAX on rocm,cpu")  # on one each
    for fine in (trainer(0.5, use_gpu=False), trainer(0.5, JAX_PLATFORMS="cpu")):
        assert fine.plan().backend == "JAX on cpu"
        assert fine.fit().return_value == "cpu"
