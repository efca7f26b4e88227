"""Models on several processes: replicated or sharded, they learn what one process learns."""

from __future__ import annotations

import json
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import dray.train
from dray.errors import ConfigError
from dray.train import Checkpoint, Result, RunConfig, ScalingConfig
from dray.train.torch import TorchConfig, TorchTrainer, prepare_model
from tests.support.torch_runs import gather

pytestmark = pytest.mark.usefixtures("process_engine")


class Block(nn.Module):
    """A layer with a way around it, and heads that are a list of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cat([head(x) for head in self.heads], dim=-1).tanh()


class Net(nn.Module):
    """Three blocks, between layers with one weight in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x) * self.scale


def fit(function: Any, storage: Path, workers: int = 2, config: Any = None) -> Result:
    return TorchTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=storage),
    ).fit()


def refusal(**options: Any) -> str:
    try:
        prepare_model(nn.Linear(2, 2), **options)
    except ConfigError as error:
        return str(error)
    return "not refused"


def learn(config: dict[str, Any]) -> list[float]:
    """Return the loss over all ranks after each step; rank 0's weights are those of seed 0."""
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)
    model = prepare_model(Net(), **config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    inputs = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))[rank::world_size]
    losses = []
    for _ in range(6):
        loss = (model(inputs) - inputs.flip(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(sum(gather(loss.item())) / world_size)
    return losses


def test_strategies_learn_what_one_process_learns(storage: Path) -> None:
    alone = fit(learn, storage / "1", workers=1, config={}).return_value
    ddp = fit(learn, storage / "2", config={}).return_value
    fsdp = fit(learn, storage / "3", config={"parallel_strategy": "fsdp"}).return_value
    options = {"parallel_strategy": "fsdp", "parallel_strategy_kwargs": {"mesh": None}}
    tuned = fit(learn, storage / "4", workers=3, config=options).return_value
    assert alone[-1] < 0.8 * alone[0]
    assert ddp == pytest.approx(alone, abs=1e-5)
    assert fsdp == pytest.approx(alone, abs=1e-5)
    assert len(tuned) == 6  # 3 ranks, of which the sizes of no parameter are a multiple


def test_fsdp_shards_blocks_and_the_rest(storage: Path) -> None:
    def train() -> Any:
        from torch.distributed.fsdp import FSDPModule

        torch.manual_seed(distributed.get_rank())
        net = Net()
        model = prepare_model(net, parallel_strategy="fsdp")
        units = [name for name, m in model.named_modules() if isinstance(m, FSDPModule)]
        parameters = list(model.parameters())
        local = sum(p.to_local().numel() for p in parameters)
        whole = gather([p.full_tensor().tolist() for p in parameters])
        torch.manual_seed(0)
        expected = [p.tolist() for p in Net().parameters()]
        scales = gather(model.scale.item())
        return model is net, units, gather(local), whole[0] == whole[1] == expected, scales

    same, units, local, from_rank_zero, scales = fit(train, storage).return_value
    assert same
    assert units == ["", "blocks.0", "blocks.1", "blocks.2"]
    total = sum(p.numel() for p in Net().parameters())
    assert sum(local) == total
    assert max(local) < 0.7 * total  # lists of 3 are shared 2 to 1
    assert from_rank_zero
    assert scales[0] == scales[1]


def test_units_with_parameters_of_others_stay_with_the_rest(storage: Path) -> None:
    def train() -> Any:
        from torch.distributed.fsdp import FSDPModule

        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()])
                self.last = nn.Linear(4, 4)
                self.last.weight = self.layers[0].weight
                self.again = nn.ModuleList([self.layers[1]])  # one module in two lists

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for layer in (*self.layers, *self.again):
                    x = layer(x)
                return self.last(x)

        model = prepare_model(Tied(), parallel_strategy="fsdp")
        model(torch.ones(2, 4)).sum().backward()
        return [name for name, m in model.named_modules() if isinstance(m, FSDPModule)]

    assert fit(train, storage).return_value == ["", "layers.1"]


def test_units_of_ones_own_are_kept(storage: Path) -> None:
    def train() -> Any:
        from torch.distributed.fsdp import FSDPModule, fully_shard

        net = Net()
        for head in net.blocks[1].heads:
            fully_shard(head)
        model = prepare_model(net, parallel_strategy="fsdp")
        model(torch.ones(2, 6)).sum().backward()
        return [name for name, m in model.named_modules() if isinstance(m, FSDPModule)]

    blocks = ["blocks.0", "blocks.1", "blocks.1.heads.0", "blocks.1.heads.1", "blocks.2"]
    assert fit(train, storage).return_value == ["", *blocks]


def test_fsdp_options_reach_every_unit(storage: Path) -> None:
    def train() -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy

        torch.manual_seed(distributed.get_rank())
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        model = prepare_model(
            Net(),
            parallel_strategy="fsdp",
            parallel_strategy_kwargs={"mesh": mesh, "mp_policy": policy},
        )
        meshes = {p.device_mesh.shape for p in model.parameters()}
        weights = gather(model.first.weight.full_tensor().tolist())
        same = all(w == weights[0] for w in weights)
        return str(model(torch.ones(2, 6)).dtype), meshes, same

    dtype, meshes, same = fit(train, storage, workers=4).return_value
    assert dtype == "torch.bfloat16"
    assert meshes == {(2, 2)}
    assert same


def test_shards_meet_in_the_group_of_the_run(storage: Path) -> None:
    """Torch takes a new one, with a timeout and a backend of its own, where it sees a GPU."""

    def train() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            model = prepare_model(nn.Linear(4, 4), parallel_strategy="fsdp")
        mesh = model.weight.device_mesh
        group = mesh.get_group(0)
        backend = group._get_backend(torch.device("cpu"))
        model(torch.ones(2, 4)).sum().backward()
        return mesh.shape, group is distributed.group.WORLD, backend.options._timeout

    result = TorchTrainer(
        train,
        torch_config=TorchConfig(timeout_s=77),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage),
    ).fit()
    assert result.return_value == ((2,), True, timedelta(seconds=77))


def test_whole_state_of_a_sharded_model_is_reported(storage: Path) -> None:
    def train() -> float:
        torch.manual_seed(0)
        model = prepare_model(Net(), parallel_strategy="fsdp")
        inputs = torch.ones(2, 6)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)
        directory = storage / f"rank{distributed.get_rank()}"
        directory.mkdir(parents=True)
        checkpoint = None
        if distributed.get_rank() == 0:
            torch.save(state, directory / "model.pt")
            checkpoint = Checkpoint.from_directory(directory)
        dray.train.report({"names": len(state)}, checkpoint=checkpoint)
        with torch.no_grad():
            return float(model(inputs).sum())

    result = fit(train, storage)
    assert result.checkpoint is not None
    with result.checkpoint.as_directory() as directory:
        state = torch.load(Path(directory) / "model.pt")
    net = Net()
    net.load_state_dict(state)
    with torch.no_grad():
        assert float(net(torch.ones(2, 6)).sum()) == pytest.approx(result.return_value, abs=1e-5)
    assert result.metrics is not None
    assert result.metrics["names"] == len(net.state_dict())


def test_what_is_refused(storage: Path) -> None:
    def train() -> list[str]:
        def sharded(**kwargs: Any) -> str:
            return refusal(parallel_strategy="fsdp", parallel_strategy_kwargs=kwargs)

        return [
            refusal(parallel_strategy="zero"),
            refusal(parallel_strategy_kwargs={"bucket": 25}),
            sharded(shards=2),
            sharded(sharding_strategy=None),
            sharded(sharding_strategy=None, mp_policy=None),
        ]

    for workers in (1, 2):  # a script is right or wrong for any number of workers
        strategy, ddp, fsdp, old, mixed = fit(train, storage, workers).return_value
        assert strategy == "parallel_strategy must be 'ddp', 'fsdp' or None, not 'zero'"
        assert ddp.startswith("parallel_strategy_kwargs bucket are not all arguments of Dist")
        assert "bucket_cap_mb" in ddp
        assert "fully_shard: " in fsdp
        assert "reshard_after_forward" in fsdp
        assert "or FullyShardedDataParallel: auto_wrap_policy" in fsdp
        assert "sharding_strategy is for, needs GPUs: ScalingConfig(use_gpu=True)" in old
        assert "mp_policy, sharding_strategy are not all arguments of fully_shard" in mixed


def test_what_is_not_wrapped(storage: Path) -> None:
    def train() -> Any:
        frozen = nn.Linear(2, 2).requires_grad_(False)
        cpu = torch.device("cpu")
        return [
            type(prepare_model(frozen)).__name__,
            type(prepare_model(nn.Linear(2, 2), parallel_strategy=None)).__name__,
            type(prepare_model(nn.Linear(2, 2), move_to_device=cpu)).__name__,
            type(prepare_model(nn.Linear(2, 2), move_to_device=False)).__name__,
        ]

    ddp = "DistributedDataParallel"
    assert fit(train, storage).return_value == ["Linear", "Linear", ddp, ddp]
    assert fit(train, storage, workers=1).return_value == ["Linear"] * 4


def test_replicas_do_not_need_what_shards_need(storage: Path) -> None:
    """Until torch 2.5 `fully_shard` is not public."""

    def train() -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr("torch.distributed.fsdp.fully_shard")
            return type(prepare_model(nn.Linear(2, 2))).__name__

    assert fit(train, storage).return_value == "DistributedDataParallel"


def test_one_worker_is_not_sharded(storage: Path) -> None:
    def train() -> str:
        return type(prepare_model(nn.Linear(2, 2), parallel_strategy="fsdp")).__name__

    assert fit(train, storage, workers=1).return_value == "Linear"


def test_a_train_function_may_name_torch_distributed_and_a_config(storage: Path) -> None:
    """cloudpickle takes the names for `torch.distributed.config`, which it does not pickle."""
    model = SimpleNamespace(config=3)

    def train() -> tuple[int, bool]:
        return model.config, torch.distributed.is_initialized()

    assert torch.distributed.config
    assert fit(train, storage).return_value == (3, True)


def test_replicas_accumulate_gradients_compute_in_bfloat16_and_are_compiled(storage: Path) -> None:
    def train() -> Any:
        rank = distributed.get_rank()
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(rank))

        def loss_of(model: nn.Module, part: torch.Tensor) -> torch.Tensor:
            return (model(part).float() - part.flip(-1)).square().mean() / 2

        def gradients(model: nn.Module) -> list[float]:
            return [float(p.grad.sum()) for p in model.parameters() if p.grad is not None]

        def replicas() -> Any:
            torch.manual_seed(0)
            return prepare_model(Net())

        found: dict[str, Any] = {}
        at_once, in_parts = replicas(), replicas()
        (loss_of(at_once, inputs) * 2).backward()
        found["at once"] = gather(gradients(at_once))
        with in_parts.no_sync():
            loss_of(in_parts, inputs[:4]).backward()
        found["not synced"] = gather(gradients(in_parts))
        loss_of(in_parts, inputs[4:]).backward()
        found["in parts"] = gather(gradients(in_parts))

        mixed = replicas()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found["dtype"] = str(mixed.module.first(inputs).dtype)
            (loss_of(mixed, inputs) * 2).backward()
        found["bfloat16"] = gather(gradients(mixed))

        whole = replicas()
        compiled = torch.compile(whole, backend="aot_eager")
        (loss_of(compiled, inputs) * 2).backward()
        found["compiled"] = gather(gradients(whole))
        return found

    result = fit(train, storage)
    written = json.loads(Path(result.path, "run.json").read_text())
    assert written["versions"]["torch"] == version("torch")  # without what it is built for
    found = result.return_value
    expected, again = found["at once"]
    assert expected == again
    mine, other = found["not synced"]
    assert mine != other
    for name, within in (("in parts", 1e-5), ("compiled", 1e-5), ("bfloat16", 0.05)):
        for each in found[name]:
            assert each == pytest.approx(expected, abs=within), name
    assert found["dtype"] == "torch.bfloat16"
