"""The first optimizer step of a small model: a train function that several programs share."""

import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.records import record


def train_function(library: str, strategy: str | None) -> Callable[[dict[str, Any]], None]:
    """Return a train function: one all-reduce, and a step if there is a strategy.

    There are two functions, because dray looks at the names that a train function uses.
    """

    def reduce(config: dict[str, Any]) -> None:
        _reduce()

    def train(config: dict[str, Any]) -> None:
        _reduce()
        take_step(library, strategy)

    return reduce if strategy is None else train


def _reduce() -> None:
    import torch
    from torch import distributed

    distributed.all_reduce(torch.ones(1))
    if distributed.get_rank() == 0:
        record("reduced")


def take_step(library: str, strategy: str | None) -> None:
    """Prepare a model, make an optimizer and take one step; rank 0 records it."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    linear = torch.nn.Linear
    model: Any = torch.nn.Sequential(linear(64, 64), torch.nn.ReLU(), linear(64, 1))
    if library == "torchrun":
        model = DistributedDataParallel(model)
    else:
        prepare_model = importlib.import_module(f"{library}.train.torch").prepare_model
        model = prepare_model(model, parallel_strategy=strategy)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64)).square().mean().backward()  # it ends with a collective
    optimizer.step()
    if distributed.get_rank() == 0:
        record("stepped")
