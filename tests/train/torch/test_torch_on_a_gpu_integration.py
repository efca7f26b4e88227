"""Train functions of PyTorch on an NVIDIA GPU: precision, compilation, memory, restarts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dray
import dray.train
from dray.errors import ConfigError, WorkerGroupError
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig
from dray.train.torch import (
    TorchConfig,
    TorchTrainer,
    get_device,
    prepare_data_loader,
    prepare_model,
)
from tests.support.gates import until
from tests.support.gpus import MEBIBYTE, on_a_gpu, used_memory
from tests.support.programs import Program, write

pytestmark = [*on_a_gpu(), pytest.mark.usefixtures("process_engine")]

GIBIBYTE = 1024 * MEBIBYTE


def fit(function: Any, storage: Path, max_failures: int = 0, **scaling: Any) -> Result:
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(**{"num_workers": 1, "use_gpu": True, **scaling}),
        run_config=RunConfig(
            storage_path=storage, failure_config=FailureConfig(max_failures=max_failures)
        ),
    ).fit()


def inputs() -> torch.Tensor:
    return torch.randn(64, 8, generator=torch.Generator().manual_seed(3))


def net() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def steps(model: nn.Module, number: int, begin: int = 0, optimizer: Any = None) -> float:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = inputs().to(next(model.parameters()).device)
    for _ in range(begin, number):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize("number", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_mixed_precision_learns(storage: Path, number: torch.dtype) -> None:
    def train() -> Any:
        model = prepare_model(net(), parallel_strategy_kwargs={"static_graph": True})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        scaler = torch.amp.GradScaler("cuda", enabled=number is torch.float16)
        x = inputs().to(get_device())
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast("cuda", number):
                found = model(x)
                loss = (found - x.sum(1, keepdim=True)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        kinds = {str(p.dtype) for p in model.parameters()}
        return losses[-1] < losses[0] / 2, str(found.dtype), kinds

    assert fit(train, storage).return_value == (True, str(number), {"torch.float32"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_learn_what_others_learn_in_each_fit(storage: Path) -> None:
    """In the second, workers are forks of a process that has imported the compiler."""

    def train() -> tuple[float, str]:
        model = prepare_model(net())
        return steps(torch.compile(model), 5), str(next(model.parameters()).device)

    expected = steps(net().cuda(), 5)
    for _ in range(2):
        found, device = fit(train, storage).return_value
        assert device == "cuda:0"
        assert found == pytest.approx(expected, rel=1e-4)


def test_the_driver_may_use_the_gpu_too(storage: Path) -> None:
    mine = torch.ones(3, device="cuda")
    found = fit(lambda: steps(prepare_model(net()), 3), storage).return_value
    assert found == pytest.approx(steps(net().cuda(), 3), rel=1e-5)
    assert mine.sum().item() == 3


def test_tensors_of_the_gpu_come_back_but_are_no_metrics(storage: Path) -> None:
    def train() -> Any:
        loss = torch.tensor(0.5, device=get_device())
        with pytest.raises(ConfigError, match=r"'loss' is a torch\.Tensor"):
            dray.train.report({"loss": loss})
        dray.train.report({"loss": loss.item()})
        return {"weights": torch.arange(4.0, device=get_device())}

    result = fit(train, storage)
    assert result.metrics == {"loss": 0.5}
    assert result.return_value["weights"].tolist() == [0, 1, 2, 3]


def test_nothing_of_a_run_stays_on_the_gpu(storage: Path) -> None:
    before = used_memory()

    def train() -> int:
        return int(torch.ones(GIBIBYTE, dtype=torch.uint8, device=get_device())[-1])

    for _ in range(2):
        assert fit(train, storage).return_value == 1
        until(lambda: used_memory() < before + 64 * MEBIBYTE)


def test_a_killed_workers_memory_is_free_for_the_next(storage: Path, tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def train() -> int:
        _, total = torch.cuda.mem_get_info()
        block = torch.ones(int(total * 0.6), dtype=torch.uint8, device=get_device())
        torch.cuda.synchronize()
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return int(block[-1])

    assert fit(train, storage, max_failures=1).return_value == 1


def test_a_full_gpu_is_told_as_pytorch_tells_it(storage: Path) -> None:
    def train() -> None:
        torch.empty(1 << 40, dtype=torch.uint8, device=get_device())

    with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
        fit(train, storage)
    assert isinstance(caught.value, WorkerGroupError)


def test_a_worker_whose_cuda_failed_is_replaced(storage: Path, tmp_path: Path) -> None:
    mark = tmp_path / "failed"

    def train() -> float:
        device = get_device()
        if not mark.exists():
            mark.touch()
            torch.zeros(3, device=device)[torch.tensor([7], device=device)].cpu()
        return torch.ones(3, device=device).sum().item()

    assert fit(train, storage, max_failures=1).return_value == 3


def test_a_cuda_error_names_the_rank(storage: Path) -> None:
    def train() -> None:
        device = get_device()
        torch.zeros(3, device=device)[torch.tensor([7], device=device)].cpu()

    with pytest.raises(WorkerGroupError, match="rank 0") as caught:
        fit(train, storage)
    assert "device-side assert" in str(caught.value)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_restart_learns_what_an_undisturbed_run_learns(
    storage: Path, tmp_path: Path, strategy: str
) -> None:
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def train(config: dict[str, Any]) -> Any:
        model = prepare_model(net(), parallel_strategy=strategy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        state: dict[str, Any] = {}
        begin, resumed = 0, dray.train.get_checkpoint()
        if resumed is not None:
            steps(model, 1, optimizer=optimizer)  # so that the optimizer has a state to fill
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments, "step": torch.tensor(0)}
            with resumed.as_directory() as place:
                dcp.load(state, checkpoint_id=place)
            set_state_dict(
                model,
                optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            begin = int(state["step"])
        for step in range(begin, 6):
            loss = steps(model, 1, optimizer=optimizer)
            if step == 2 and resumed is None:
                place = config["place"]
                weights, moments = get_state_dict(model, optimizer)
                now = {"model": weights, "optimizer": moments, "step": torch.tensor(step + 1)}
                dcp.save(now, checkpoint_id=place)
                dray.train.report({"loss": loss}, checkpoint=Checkpoint.from_directory(place))
                if config["kill"]:
                    os.kill(os.getpid(), signal.SIGKILL)
        return loss

    def losses(kill: bool) -> Any:
        trainer = TorchTrainer(
            train,
            train_loop_config={"kill": kill, "place": str(tmp_path / f"saved-{kill}")},
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(
                storage_path=storage, failure_config=FailureConfig(max_failures=1)
            ),
        )
        return trainer.fit().return_value

    assert losses(kill=True) == losses(kill=False)


def test_loaders_with_processes_of_their_own_feed_the_gpu(storage: Path) -> None:
    """Which are forks of a worker that uses CUDA already."""

    def train() -> Any:
        torch.ones(1, device=get_device())
        data = TensorDataset(torch.arange(40.0))
        own = DataLoader(
            data, batch_size=4, num_workers=2, pin_memory=True, persistent_workers=True
        )
        loader = prepare_data_loader(own)
        seen = [(str(x.device), x.tolist()) for _ in range(2) for (x,) in loader]
        return {device for device, _ in seen}, sum(sum(batch) for _, batch in seen)

    assert fit(train, storage).return_value == ({"cuda:0"}, 2 * sum(range(40)))


def test_two_runs_share_the_gpu(storage: Path) -> None:
    def train() -> tuple[str, float]:
        return str(get_device()), steps(prepare_model(net()), 3)

    @dray.remote(num_cpus=0)
    def run() -> Any:
        half = {"CPU": 0.5, "GPU": 0.5}
        return fit(train, storage, resources_per_worker=half).return_value

    (first, one), (second, other) = dray.get([run.remote(), run.remote()])
    assert (first, second) == ("cuda:0", "cuda:0")
    assert one == other


def test_in_this_process_too(storage: Path) -> None:
    def train() -> tuple[str, int]:
        model = prepare_model(net())
        steps(model, 2)
        return str(next(model.parameters()).device), os.getpid()

    assert fit(train, storage, num_workers=0).return_value == ("cuda:0", os.getpid())


def test_cpu_tensors_beside_those_of_the_gpu(storage: Path) -> None:
    from torch import distributed

    def train() -> Any:
        here, there = torch.ones(2), torch.ones(2, device=get_device())
        distributed.all_reduce(here)
        distributed.all_reduce(there)
        gathered = [None]
        distributed.all_gather_object(gathered, {"rank": 0})
        return here.tolist(), there.tolist(), gathered

    trainer = TorchTrainer(
        train,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl"),
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(storage_path=storage),
    )
    assert trainer.fit().return_value == ([1, 1], [1, 1], [{"rank": 0}])


def test_ctrl_c_leaves_the_gpu_free(storage: Path, tmp_path: Path) -> None:
    before = used_memory()
    code = """
        import torch
        from dray.train.torch import TorchTrainer, get_device

        def train():
            block = torch.ones(1 << 30, dtype=torch.uint8, device=get_device())
            print("filled", int(block[-1]), flush=True)
            while True:
                block.add_(1)
                torch.cuda.synchronize()

        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
            run_config=RunConfig(storage_path=os.environ["STORAGE"]),
        ).fit()
        """
    program = Program(write(tmp_path / "program.py", code), storage)
    program.wait_for("filled 1")
    assert used_memory() > before + GIBIBYTE
    program.process.send_signal(signal.SIGINT)
    status, output = program.end(within_s=30)
    assert status != 0, output
    assert "KeyboardInterrupt" in output or status in (-signal.SIGINT, 130), output
    until(lambda: used_memory() < before + 64 * MEBIBYTE)


def test_workers_find_cuda_where_the_fork_server_has_imported_it(storage: Path) -> None:
    """Modules that a first fit imported are imported ahead of the second's forks."""

    def train() -> Any:
        import torch.cuda.amp
        import torch.nn.attention
        import torch.utils.cpp_extension

        return torch.cuda.is_initialized(), torch.cuda.device_count()

    for _ in range(3):
        assert fit(train, storage).return_value == (True, 1)
