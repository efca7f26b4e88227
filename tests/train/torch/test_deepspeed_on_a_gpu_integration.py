"""DeepSpeed by itself on a GPU: its ZeRO in half precision, and runs that go on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.train.torch import get_device
from tests.support.gpu_fits import fit_whole_and_in_parts
from tests.support.gpus import on_a_gpu

pytest.importorskip("deepspeed", reason="deepspeed is not installed: see docs/accelerate.md")

pytestmark = [
    *on_a_gpu(),
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.filterwarnings("ignore"),  # of DeepSpeed itself: what PyTorch has deprecated
    pytest.mark.timeout(240),
]


def learn(config: dict[str, Any]) -> dict[str, Any]:
    """Train, and go on where the run's last checkpoint is; return where it was done, and how."""
    import deepspeed
    import torch
    from torch import distributed

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        # DeepSpeed's own Adam would be compiled first.
        "optimizer": {"type": "Adam", "params": {"lr": 0.05, "torch_adam": True}},
        "zero_optimization": {"stage": config["stage"]},
    }
    if config["precision"] != "float32":
        name = {"float16": "fp16", "bfloat16": "bf16"}[config["precision"]]
        settings[name] = {"enabled": True}
    if config["precision"] == "float16":  # or it begins with steps that it skips
        settings["fp16"]["initial_scale_power"] = 8
    # Else it takes the GPU of the local rank, of which there is none where two share one.
    device = argparse.Namespace(device_rank=get_device().index or 0)
    engine, *_ = deepspeed.initialize(
        device, model=net, model_parameters=net.parameters(), config=settings
    )
    first, checkpoint = 0, dray.train.get_checkpoint()
    if checkpoint is not None:
        engine.load_checkpoint(checkpoint.path)
        first = checkpoint.get_metadata()["epoch"] + 1
    points = torch.linspace(-1, 1, 16, device=engine.device).reshape(16, 1)
    points = points.to(getattr(torch, config["precision"]))
    storage = dray.train.get_context().get_storage()
    for epoch in range(first, config["epochs"]):
        for batch in points.split(4):
            found = engine(batch)
            loss = (found.float() - 3 * batch.float()).pow(2).mean()
            engine.backward(loss)
            engine.step()
        # All ranks write into one directory of the run, each its part of the optimizer.
        directory = storage.build_checkpoint_path_from_name(f"epoch-{epoch}")
        engine.save_checkpoint(directory)
        checkpoint = dray.train.Checkpoint.from_directory(directory)
        checkpoint.set_metadata({"epoch": epoch})
        upload = dray.train.CheckpointUploadMode.NO_UPLOAD
        dray.train.report({"loss": loss.item()}, checkpoint, checkpoint_upload_mode=upload)
    return {
        "backend": distributed.get_backend(),
        "ranks": distributed.get_world_size(),
        "device": str(engine.device),
        "computed": f"{found.device} {found.dtype}",
        "first": first,
    }


@pytest.mark.parametrize(
    ("stage", "precision", "ranks"),
    [(2, "bfloat16", 1), (1, "float16", 1), (2, "float32", 2)],
)
def test_a_run_goes_on_and_another_of_the_program_ends_as_the_first(
    storage: Path, stage: int, precision: str, ranks: int
) -> None:
    whole, ended = fit_whole_and_in_parts(
        learn, storage, "epochs", 2, 6, ranks=ranks, stage=stage, precision=precision
    )
    expected = {
        "backend": "nccl" if ranks == 1 else "gloo",
        "ranks": ranks,
        "device": "cuda:0",
        "computed": f"cuda:0 torch.{precision}",
        "first": 0,
    }
    assert whole.return_value == expected
    assert whole.metrics is not None
    assert whole.metrics["loss"] < 1
    assert ended.return_value == expected | {"first": 2}
    assert ended.metrics == {"loss": pytest.approx(whole.metrics["loss"], rel=1e-3)}
