"""Lightning on a GPU: its strategies and precisions, runs that go on, several runs of a program."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import distributed

import dray.train
from dray.train.lightning import (
    RayDDPStrategy,
    RayDeepSpeedStrategy,
    RayFSDPStrategy,
    RayTrainReportCallback,
    prepare_trainer,
)
from tests.support.gpu_fits import fit_on_a_gpu, fit_whole_and_in_parts
from tests.support.gpus import needs_deepspeed, on_a_gpu
from tests.train.lightning.lightning_runs import Line, make_trainer

pytestmark = [
    *on_a_gpu(),
    pytest.mark.usefixtures("process_engine"),
    pytest.mark.filterwarnings("ignore"),  # of Lightning and DeepSpeed themselves
    pytest.mark.timeout(240),
]
STRATEGIES: dict[str, Any] = {
    "ddp": RayDDPStrategy,
    "fsdp": RayFSDPStrategy,
    # Its own Adam would be compiled first.
    "deepspeed": functools.partial(RayDeepSpeedStrategy, stage=2),
}


class Curve(Line):
    """A line with a layer between; takes note of where it computes, and in which type."""

    def __init__(self) -> None:
        super().__init__()
        layers: Any = [torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
        net: Any = torch.nn.Sequential(*layers)
        self.layer = net
        self.seen: list[tuple[str, str]] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        found = self.layer(batch)
        self.seen.append((str(found.device), str(found.dtype)))
        loss = (found.float() - 3 * batch.float()).pow(2).mean()
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss


def learn(config: dict[str, Any]) -> dict[str, Any]:
    """Train, and go on where the run's last checkpoint is; return where it was done, and how."""
    warnings.simplefilter("ignore")
    pl.seed_everything(0)
    trainer = make_trainer(
        RayTrainReportCallback(),
        accelerator="auto",
        strategy=STRATEGIES[config["strategy"]](),
        precision=config["precision"],
        max_epochs=config["epochs"],
    )
    model, path = Curve(), None
    checkpoint = dray.train.get_checkpoint()
    if checkpoint is not None:
        path = os.path.join(checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    prepare_trainer(trainer).fit(model, ckpt_path=path)
    return {
        "accelerator": type(trainer.accelerator).__name__,
        "backend": distributed.get_backend(),
        "ranks": trainer.world_size,
        "seen": sorted(set(model.seen)),
        "steps": len(model.seen),
    }


def metrics_of(result: Any) -> dict[str, Any]:
    """Return what was reported last, to compare with what else may differ by rounding."""
    assert result.metrics is not None
    return {name: pytest.approx(value, rel=1e-3) for name, value in result.metrics.items()}


@pytest.mark.parametrize(
    ("strategy", "precision", "ranks"),
    [
        ("ddp", "16-mixed", 1),
        ("ddp", "bf16-mixed", 2),
        ("fsdp", "bf16-mixed", 1),
        ("fsdp", "32-true", 2),
        pytest.param("deepspeed", "bf16-mixed", 1, marks=needs_deepspeed),
    ],
)
def test_a_run_goes_on_and_another_of_the_program_ends_as_the_first(
    storage: Path, strategy: str, precision: str, ranks: int
) -> None:
    whole, ended = fit_whole_and_in_parts(
        learn, storage, "epochs", 1, 3, ranks=ranks, strategy=strategy, precision=precision
    )
    dtype = {"16": "float16", "bf16": "bfloat16", "32": "float32"}[precision.partition("-")[0]]
    assert whole.return_value == {
        "accelerator": "CUDAAccelerator",
        "backend": "nccl" if ranks == 1 else "gloo",
        "ranks": ranks,
        "seen": [("cuda:0", f"torch.{dtype}")],
        "steps": 3 * 8 / ranks,
    }
    assert whole.metrics is not None
    assert whole.metrics["loss"] < 1
    assert ended.return_value["steps"] == 2 * 8 / ranks
    assert ended.metrics == metrics_of(whole)


def test_trainers_of_all_precisions_in_one_worker(storage: Path) -> None:
    def train(config: dict[str, Any]) -> list[Any]:
        from torch.cuda import memory_allocated

        found = []
        for precision in ("32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"):
            trainer = make_trainer(accelerator="auto", precision=precision, max_epochs=1)
            model = Curve()
            prepare_trainer(trainer).fit(model)
            found.append((precision, sorted(set(model.seen))))
        return [*found, memory_allocated() < 2**26]

    assert fit_on_a_gpu(train, storage / "run").return_value == [
        ("32-true", [("cuda:0", "torch.float32")]),
        ("16-mixed", [("cuda:0", "torch.float16")]),
        ("bf16-mixed", [("cuda:0", "torch.bfloat16")]),
        ("16-true", [("cuda:0", "torch.float16")]),
        ("bf16-true", [("cuda:0", "torch.bfloat16")]),
        True,
    ]


def test_metrics_of_the_gpu_are_numbers_beside_a_sharded_checkpoint(storage: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        trainer = make_trainer(
            RayTrainReportCallback(every_n_epochs=0, every_n_train_steps=4),
            accelerator="auto",
            strategy=RayFSDPStrategy(state_dict_type="sharded"),
            max_epochs=1,
        )
        prepare_trainer(trainer).fit(Curve())

    result = fit_on_a_gpu(train, storage / "run")
    assert result.metrics is not None
    assert {type(value) for value in result.metrics.values()} <= {int, float}, result.metrics
    assert result.checkpoint is not None
    saved = Path(result.checkpoint.path, RayTrainReportCallback.CHECKPOINT_NAME)
    assert saved.is_dir(), sorted(saved.parent.iterdir())
    assert [*saved.glob("*.distcp")], sorted(saved.iterdir())


def test_deepspeed_trains_on_any_gpu_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its strategy refuses devices whose numbers do not begin at 0."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)  # or it sets the seed anew
    strategy: Any = RayDeepSpeedStrategy.__new__(RayDeepSpeedStrategy)
    monkeypatch.setattr(RayDeepSpeedStrategy, "root_device", torch.device("cuda", 1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("set_world_ranks", "_init_deepspeed_distributed"):
        monkeypatch.setattr(strategy, name, lambda: None)
    strategy.setup_distributed()
    assert strategy.parallel_devices == [torch.device("cuda", 0), torch.device("cuda", 1)]
