"""Accelerate in workers without accelerators: their ranks, restarts, its own errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dray.train
from dray.errors import ConfigError, WorkerGroupError
from dray.train import FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.torch import TorchTrainer, prepare_data_loader
from tests.support import ctrl_c
from tests.support.torch_runs import fit

process_engine = pytest.mark.usefixtures("process_engine")
on_engines = pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)


@process_engine
def test_it_trains_with_all_workers(storage: Path) -> None:
    def train() -> Any:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator()
        model, data = accelerator.prepare(
            torch.nn.Linear(1, 1, bias=False),
            torch.utils.data.DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2),
        )
        seen = [float(x) for batch in data for x in batch]
        rank = accelerator.process_index
        accelerator.backward(model(torch.full((1, 1), float(rank))).sum())
        gradient = float(model.module.weight.grad)
        together = accelerator.gather(torch.tensor([rank])).tolist()
        resumable = prepare_data_loader(torch.utils.data.DataLoader(range(4)), resumable=True)
        with pytest.raises(ConfigError, match=r"with Accelerate, prepare\(\) the rest without it"):
            list(accelerator.prepare(resumable))
        return accelerator.num_processes, str(accelerator.device), len(seen), gradient, together

    result = fit(train, storage, num_workers=2)
    assert result.return_value == (2, "cpu", 4, 0.5, [0, 1])


@process_engine
def test_what_the_user_has_set_stays(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")

    def train() -> str:
        return os.environ["ACCELERATE_USE_CPU"]

    assert fit(train, storage).return_value == "false"


def learn(config: dict[str, Any]) -> tuple[str, int]:
    """Trains with accumulated gradients; returns how it is distributed, and its first epoch."""
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration

    torch.manual_seed(0)
    accelerator = Accelerator(
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    points = torch.linspace(-1, 1, 16).reshape(16, 1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(points, batch_size=2, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    first, checkpoint = 0, dray.train.get_checkpoint()
    if checkpoint is not None:
        accelerator.load_state(checkpoint.path)
        first = checkpoint.get_metadata()["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        loader.set_epoch(epoch)
        steps = 0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = (model(batch) - 3 * batch).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                steps += accelerator.sync_gradients
        with dray.train.checkpoint_dir() as directory:  # cleared away if the rank is killed
            accelerator.save_state(directory)
            checkpoint = dray.train.Checkpoint.from_directory(directory)
            checkpoint.set_metadata({"epoch": epoch})
            metrics = {"loss": accelerator.reduce(loss.detach()).item(), "steps": steps}
            dray.train.report(metrics, checkpoint)
        if epoch == 1 and first == 0 and config["fails"] and accelerator.process_index == 1:
            config["fails"](accelerator)
    return accelerator.distributed_type.name, first


def kill(accelerator: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def load_nothing(accelerator: Any) -> None:
    accelerator.load_state("nowhere")


def fit_learning(storage: Path, fails: Any = None, epochs: int = 3, callbacks: Any = ()) -> Result:
    return TorchTrainer(
        learn,
        train_loop_config={"fails": fails, "epochs": epochs},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=storage,
            failure_config=FailureConfig(max_failures=int(fails is kill)),
            callbacks=list(callbacks),
        ),
    ).fit()


@on_engines
@pytest.mark.usefixtures("engine")
def test_after_a_kill_it_ends_as_if_nothing_had_happened(storage: Path) -> None:
    undisturbed = fit_learning(storage / "undisturbed")
    assert undisturbed.return_value == ("MULTI_CPU", 0)
    assert undisturbed.metrics is not None
    assert undisturbed.metrics["steps"] == 2
    killed = fit_learning(storage / "killed", fails=kill)
    assert killed.return_value[1] == 2
    assert killed.metrics == undisturbed.metrics


@process_engine
def test_its_own_error_comes_with_its_rank(storage: Path) -> None:
    with pytest.raises(WorkerGroupError, match=r"rank 1 failed: ValueError: .*nowhere"):
        fit_learning(storage, fails=load_nothing)


@process_engine
def test_ctrl_c_ends_it(storage: Path) -> None:
    ctrl_c.ends_run(lambda callbacks: fit_learning(storage, epochs=10**6, callbacks=callbacks))
