"""A model that all ranks train: moved to its device, and wrapped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dray.errors import ConfigError
from dray.train.context import current_seat
from dray.train.torch_devices import get_device

if TYPE_CHECKING:
    import torch


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, Any] | None = None,
) -> torch.nn.Module:
    """Moves a model to this worker's device, and wraps it so that ranks train one model.

    Args:
        model: The model.
        move_to_device: Whether to move it; or the device to move it to.
        parallel_strategy: "ddp" (DistributedDataParallel), "fsdp" (FullyShardedDataParallel, on
            GPUs), or None. With one worker the model is not wrapped.
        parallel_strategy_kwargs: Arguments for the wrapper.

    Returns:
        The model, wrapped or not; the original is `.module` of a wrapped one.

    Raises:
        ConfigError: The strategy does not exist, or does not work here.
        NotInTrainingError: Called outside a train function.
    """
    import torch

    world_size = current_seat("prepare_model").assignment.world_size
    if parallel_strategy not in ("ddp", "fsdp", None):
        raise ConfigError(
            f"parallel_strategy must be 'ddp', 'fsdp' or None, not {parallel_strategy!r}"
        )
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    if parallel_strategy == "fsdp" and device.type == "cpu":
        raise ConfigError("parallel_strategy='fsdp' needs GPUs: ScalingConfig(use_gpu=True)")
    if move_to_device:
        model = model.to(device)
    if world_size == 1 or parallel_strategy is None:
        return model
    options = dict(parallel_strategy_kwargs or {})
    if parallel_strategy == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(model, **options)
    if device.type != "cpu" and move_to_device:
        options = {"device_ids": [device], "output_device": device, **options}
    return torch.nn.parallel.DistributedDataParallel(model, **options)
