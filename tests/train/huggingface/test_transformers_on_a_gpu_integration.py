"""Transformers on a GPU: half precision, runs that go on, several runs of a program."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import distributed

import dray.train
from dray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from tests.support.gpu_fits import fit_on_a_gpu, fit_whole_and_in_parts
from tests.support.gpus import on_a_gpu

pytestmark = [
    *on_a_gpu(),
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.timeout(240),
]
TOKENS = [{"input_ids": [k * (n + 1) % 16 for k in range(8)]} for n in range(16)]


class Notes(transformers.TrainerCallback):
    """Counts steps; takes note of where a model computes, and in which type."""

    def __init__(self) -> None:
        self.steps = 0
        self.seen: set[str] = set()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["model"].get_submodule("transformer.h.0.attn.c_attn").register_forward_hook(self._see)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1

    def _see(self, _: Any, __: Any, found: Any) -> None:
        self.seen.add(f"{found.device} {found.dtype}")


def learn(config: dict[str, Any]) -> dict[str, Any]:
    """Train a GPT-2 of two heads, and go on where it is; return where it was done, and how."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.set_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends))
    args = transformers.TrainingArguments(
        str(Path(dray.train.get_context().get_storage().storage_fs_path, "output")),
        per_device_train_batch_size=2,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_steps=config["steps"],
        save_steps=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        **config["arguments"],
    )
    notes = Notes()
    data: Any = [{**row, "labels": row["input_ids"]} for row in TOKENS]
    given: dict[str, Any] = {"train_dataset": data, "eval_dataset": data}
    callbacks = [RayTrainReportCallback(), notes]
    trainer = prepare_trainer(transformers.Trainer(model, args, callbacks=callbacks, **given))
    checkpoint = dray.train.get_checkpoint()
    path = checkpoint and os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    trainer.train(resume_from_checkpoint=path)
    return {
        "backend": distributed.get_backend(),
        "ranks": args.world_size,
        "device": str(args.device),
        "devices": args.n_gpu,
        "computed": sorted(notes.seen),
        "evaluated": trainer.evaluate()["eval_loss"] < 2.8,
        "steps": notes.steps,
    }


@pytest.mark.parametrize(
    ("arguments", "ranks"),
    [
        ({"bf16": True}, 1),
        ({"fp16": True}, 1),
        ({"bf16": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}, 2),
    ],
    ids=["bf16", "fp16", "two-ranks"],
)
def test_a_run_goes_on_and_another_of_the_program_ends_as_the_first(
    storage: Path, arguments: dict[str, Any], ranks: int
) -> None:
    whole, ended = fit_whole_and_in_parts(
        learn, storage, "steps", 4, 12, ranks=ranks, arguments=arguments
    )
    dtype = "bfloat16" if "bf16" in arguments else "float16"
    expected = {
        "backend": "nccl" if ranks == 1 else "gloo",
        "ranks": ranks,
        "device": "cuda:0",
        "devices": 1,
        "computed": [f"cuda:0 torch.{dtype}"],
        "evaluated": True,
        "steps": 12,
    }
    assert whole.return_value == expected
    assert ended.return_value == expected | {"steps": 8}
    assert whole.metrics is not None
    assert ended.metrics is not None
    for name in ("loss", "grad_norm", "epoch"):
        assert ended.metrics[name] == pytest.approx(whole.metrics[name], rel=1e-2), name


def test_a_model_compiled_by_the_trainer(storage: Path) -> None:
    arguments = {"bf16": True, "torch_compile": True, "torch_compile_backend": "aot_eager"}
    result = fit_on_a_gpu(learn, storage / "run", steps=2, arguments=arguments)
    assert result.return_value["device"] == "cuda:0"
    assert result.metrics is not None
    assert 1 < result.metrics["loss"] < 4, result.metrics
    assert torch.isfinite(torch.tensor(result.metrics["grad_norm"]))
