"""Trains a small GPT-2 of Transformers on the Zen of Python with several workers."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

import dray.train
from dray.train import FailureConfig, RunConfig, ScalingConfig
from dray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from dray.train.torch import TorchTrainer

CONTEXT = 32  # bytes that the model looks back


class Pieces(Dataset[Any]):
    """Pieces of a text, whose tokens are its bytes."""

    def __init__(self, text: str) -> None:
        self.pieces = torch.tensor(list(text.encode())).unfold(0, CONTEXT, 1)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[number], "labels": self.pieces[number]}


def read_text() -> str:
    """Return the Zen of Python, which `import this` prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


def train_loop(config: dict[str, Any]) -> None:
    set_seed(0)
    sizes = {"n_positions": CONTEXT, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **sizes))
    arguments = TrainingArguments(
        config["output"],
        max_steps=config["steps"],
        save_steps=config["save_steps"],
        logging_steps=config["save_steps"],
        per_device_train_batch_size=16,
        learning_rate=0.003,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Pieces(read_text()),
        callbacks=[RayTrainReportCallback()],
    )
    # Of a run that was stopped, go on after the last step that it has reported.
    checkpoint = dray.train.get_checkpoint()
    path = checkpoint and os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    prepare_trainer(trainer).train(resume_from_checkpoint=path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--num-workers", type=int, default=2, help="workers")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--steps", type=int, default=150, help="steps, earlier ones included")
    parser.add_argument("--save-steps", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--storage-path", default="~/dray_results", help="where runs are kept")
    parser.add_argument("--name", help="the run's name; one used before goes on with that run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as output:  # its checkpoints move into the run
        result = TorchTrainer(
            train_loop,
            train_loop_config={
                "output": output,
                "steps": options.steps,
                "save_steps": options.save_steps,
            },
            scaling_config=ScalingConfig(num_workers=options.num_workers, use_gpu=options.use_gpu),
            run_config=RunConfig(
                name=options.name,
                storage_path=options.storage_path,
                failure_config=FailureConfig(max_failures=1),
            ),
        ).fit()
    assert result.metrics is not None
    print(f"step {result.metrics['step']}: loss {result.metrics['loss']:.3f}")
    print(f"The checkpoints are in {result.path}.")


if __name__ == "__main__":
    main()
