"""Accelerate on a GPU: its mixed precisions and plug-ins, runs that go on, several of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dray.train
from tests.support.gpu_fits import fit_whole_and_in_parts
from tests.support.gpus import needs_deepspeed, on_a_gpu

pytestmark = [
    *on_a_gpu(),
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.filterwarnings("ignore"),  # of DeepSpeed itself
    pytest.mark.timeout(240),
]


def plugin_of(kind: str) -> dict[str, Any]:
    """Return arguments of `Accelerator` that shard a model, or replicate it."""
    if kind == "fsdp2":
        from accelerate import FullyShardedDataParallelPlugin

        return {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}
    if kind == "deepspeed":
        from accelerate import DeepSpeedPlugin

        settings = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
        }
        return {"deepspeed_plugin": DeepSpeedPlugin(settings)}
    return {}


def learn(config: dict[str, Any]) -> dict[str, Any]:
    """Train, and go on where the run's last checkpoint is; return where it was done, and how."""
    import torch
    from accelerate import Accelerator
    from torch import distributed

    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision=config["precision"], **plugin_of(config["kind"]))
    net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    computed: set[str] = set()
    net[0].register_forward_hook(lambda *given: computed.add(f"{given[2].device} {given[2].dtype}"))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    points = torch.linspace(-1, 1, 16).reshape(16, 1)
    loader = torch.utils.data.DataLoader(points, batch_size=4)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)

    first, checkpoint = 0, dray.train.get_checkpoint()
    if checkpoint is not None:
        accelerator.load_state(checkpoint.path)
        first = checkpoint.get_metadata()["epoch"] + 1
    storage = dray.train.get_context().get_storage()
    for epoch in range(first, config["epochs"]):
        for batch in loader:
            found = model(batch.to(next(net.parameters()).dtype))  # DeepSpeed leaves it to us
            loss = (found.float() - 3 * batch).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        # All ranks write into one directory of the run, where a model is sharded each its part.
        directory = storage.build_checkpoint_path_from_name(f"epoch-{epoch}")
        accelerator.save_state(directory)
        checkpoint = dray.train.Checkpoint.from_directory(directory)
        checkpoint.set_metadata({"epoch": epoch})
        metrics = {"loss": accelerator.reduce(loss.detach(), "mean").item()}
        upload = dray.train.CheckpointUploadMode.NO_UPLOAD
        dray.train.report(metrics, checkpoint, checkpoint_upload_mode=upload)
    return {
        "kind": accelerator.distributed_type.name,
        "backend": distributed.get_backend(),
        "ranks": accelerator.num_processes,
        "device": str(accelerator.device),
        "computed": sorted(computed),
        "first": first,
    }


@pytest.mark.parametrize(
    ("kind", "precision", "ranks"),
    [
        ("MULTI_GPU", "fp16", 1),
        ("MULTI_GPU", "bf16", 2),
        ("fsdp2", "bf16", 1),
        pytest.param("deepspeed", "bf16", 1, marks=needs_deepspeed),
    ],
)
def test_a_run_goes_on_and_another_of_the_program_ends_as_the_first(
    storage: Path, kind: str, precision: str, ranks: int
) -> None:
    whole, ended = fit_whole_and_in_parts(
        learn, storage, "epochs", 2, 6, ranks=ranks, kind=kind, precision=precision
    )
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[precision]
    expected = {
        "kind": {"fsdp2": "FSDP", "deepspeed": "DEEPSPEED"}.get(kind, kind),
        "backend": "nccl" if ranks == 1 else "gloo",
        "ranks": ranks,
        "device": "cuda:0",
        "computed": [f"cuda:0 torch.{dtype}"],
        "first": 0,
    }
    assert whole.return_value == expected
    assert whole.metrics is not None
    assert whole.metrics["loss"] < (2 if kind == "deepspeed" else 1)  # all of which is in bf16
    assert ended.return_value == expected | {"first": 2}
    assert ended.metrics == {"loss": pytest.approx(whole.metrics["loss"], rel=1e-3)}
