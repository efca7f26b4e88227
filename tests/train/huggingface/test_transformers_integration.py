"""Transformers in workers: the same numbers after a restart, one checkpoint, none of it twice."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import dray.train
from dray.errors import ConfigError, WorkerGroupError
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from dray.train.torch import TorchTrainer
from tests.support import ctrl_c

process_engine = pytest.mark.usefixtures("process_engine")
on_engines = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)


class Texts(torch.utils.data.Dataset[Any]):
    """Sixteen texts of eight tokens each."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) * (number + 1)) % 16
        return {"input_ids": tokens, "labels": tokens}


class Fails(transformers.TrainerCallback):
    """Fails on rank 1 at a step, once."""

    def __init__(self, how: Any, step: int) -> None:
        self._how, self._step = how, step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._step and dray.train.get_context().get_world_rank() == 1:
            self._how()


def kill_once() -> None:
    place = Path(dray.train.get_context().get_storage().storage_fs_path, "killed")
    if not place.exists():
        place.touch()
        os.kill(os.getpid(), signal.SIGKILL)


ROWS = [{name: values.numpy() for name, values in Texts()[number].items()} for number in range(16)]


def train(config: dict[str, Any]) -> list[str]:
    """Trains a GPT-2 of two heads; returns what is left in the directory of Transformers."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.set_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=16,
            n_positions=8,
            n_embd=8,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    output = Path(dray.train.get_context().get_storage().storage_fs_path, "output")
    args = transformers.TrainingArguments(
        str(output),
        per_device_train_batch_size=2,
        max_steps=config.get("steps", 6),
        save_steps=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **config.get("arguments", {}),
    )
    callbacks = [RayTrainReportCallback(), *config.get("callbacks", [])]
    data = shard_of("train", 2) if config.get("shards") else Texts()
    tested = dict.fromkeys(config.get("tested", ()), data) or data
    trainer = prepare_trainer(
        transformers.Trainer(
            model, args, train_dataset=data, eval_dataset=tested, callbacks=callbacks
        )
    )
    checkpoint = dray.train.get_checkpoint()
    path = checkpoint and os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    trainer.train(resume_from_checkpoint=path)
    return sorted(name.name for name in output.iterdir())


def shard_of(name: str, batch: int) -> Any:
    shard = dray.train.get_dataset_shard(name)
    return shard.iter_torch_batches(batch_size=batch, dtypes=torch.int64)


def fit(storage: Path, function: Any = train, told: Any = (), **config: Any) -> Result:
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        datasets={"train": ROWS} if config.get("shards") else None,
        run_config=RunConfig(
            storage_path=storage,
            failure_config=FailureConfig(max_failures=1),
            callbacks=list(told),
        ),
    ).fit()


def metrics(result: Result) -> tuple[float, ...]:
    assert result.metrics is not None
    return tuple(result.metrics[name] for name in ("loss", "grad_norm", "epoch"))


@on_engines
@pytest.mark.usefixtures("engine")
def test_after_a_kill_it_ends_as_if_nothing_had_happened(storage: Path) -> None:
    undisturbed = fit(storage / "undisturbed")
    assert undisturbed.return_value == []  # no second copy of what is in the run's directory
    assert len(undisturbed.best_checkpoints) == 3
    assert undisturbed.checkpoint is not None
    saved = os.listdir(Path(undisturbed.checkpoint.path, "checkpoint"))
    assert {"model.safetensors", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth"} <= {*saved}

    killed = fit(storage / "interrupted", callbacks=[Fails(kill_once, 3)])
    assert metrics(killed) == metrics(undisturbed)
    assert len(killed.best_checkpoints) == 3


@process_engine
def test_an_error_of_a_rank_is_its_own(storage: Path) -> None:
    def fail() -> None:
        raise FloatingPointError("of rank 1")

    with pytest.raises(WorkerGroupError, match="of rank 1") as caught:
        fit(storage, callbacks=[Fails(fail, 1)])
    assert isinstance(caught.value.worker_failures[1], FloatingPointError)


@process_engine
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit(storage, told=callbacks, steps=10**6))


@process_engine
@pytest.mark.parametrize(
    "asked", [{"load_best_model_at_end": True}, {"metric_for_best_model": "eval_loss"}]
)
def test_the_best_model_is_there_at_the_end(storage: Path, asked: dict[str, Any]) -> None:
    """With accumulated gradients, in bfloat16."""
    result = fit(
        storage,
        arguments={
            **asked,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_total_limit": 1,
            "bf16": True,
            "gradient_accumulation_steps": 2,
        },
    )
    assert result.metrics is not None
    assert result.metrics["eval_loss"] > 0
    assert len(result.best_checkpoints) == 3
    assert result.return_value[-1] == "checkpoint-6"


@process_engine
def test_batches_of_a_shard_reach_it(storage: Path) -> None:
    arguments = {"eval_strategy": "steps", "eval_steps": 2}
    result = fit(storage, steps=2, shards=True, arguments=arguments, tested=("a", "b"))
    assert result.metrics is not None
    assert result.metrics["eval_a_loss"] == result.metrics["eval_b_loss"] > 0


@process_engine
@pytest.mark.parametrize("kill_at", [3, 5])
def test_a_shard_goes_on_where_it_was(storage: Path, kill_at: int) -> None:
    """Amid an epoch, and at its end: four steps are one."""
    undisturbed = fit(storage / "undisturbed", shards=True)
    killed = fit(storage / "interrupted", shards=True, callbacks=[Fails(kill_once, kill_at)])
    assert metrics(killed)[:2] == metrics(undisturbed)[:2]
    assert len(killed.best_checkpoints) == 3


@process_engine
def test_another_trainer_is_refused(storage: Path) -> None:
    def train(config: dict[str, Any]) -> Any:
        with pytest.raises(ConfigError, match=r"takes a transformers.Trainer, not 'mine'"):
            prepare_trainer("mine")
        return "refused"

    assert fit(storage, train).return_value == "refused"
