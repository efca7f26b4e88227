"""Program: trains a small GPT-2 of Transformers, under a library or torchrun.

Arguments: those of `benchmarks.stepping`.
"""

from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmarks.stepping import Config, Steps, main, names_of

of_library = names_of("huggingface.transformers")
TOKENS, LENGTH, BATCH_SIZE = 256, 64, 8


class Texts(torch.utils.data.Dataset[Any]):
    """A dataset of equal texts."""

    def __init__(self, count: int) -> None:
        self._count, self._tokens = count, torch.arange(LENGTH)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens, "labels": self._tokens}


class Told(TrainerCallback):
    """A callback that records the steps."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._steps.stepped()


def train(config: Config) -> None:
    sizes = {"vocab_size": TOKENS, "n_positions": LENGTH, "n_embd": 128, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    arguments = TrainingArguments(
        "saved",
        max_steps=config["steps"],
        save_steps=config["steps"],
        per_device_train_batch_size=BATCH_SIZE,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    steps = Steps(config, arguments.process_index)
    callbacks: list[Any] = [Told(steps)]
    if of_library is not None:
        report = of_library.RayTrainReportCallback()
        callbacks.insert(0, steps.watch(report, "on_step_end"))
    texts = Texts(config["steps"] * config["workers"] * BATCH_SIZE)
    trainer = Trainer(model, arguments, train_dataset=texts, callbacks=callbacks)
    if of_library is not None:
        trainer = of_library.prepare_trainer(trainer)
    trainer.train()


if __name__ == "__main__":
    main(train, alone=train)
