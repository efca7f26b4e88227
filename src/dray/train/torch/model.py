"""A model that all ranks train: moved to its device, and replicated or sharded."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dray.errors import ConfigError
from dray.train.torch.devices import get_device
from dray.train.worker.current_session import current_session

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

# DistributedDataParallel moves inputs to devices of these types, if it is given an index.
_TYPES_WITH_IDS = ("cuda", "xpu", "npu", "hpu")


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool | torch.device = True,
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: Mapping[str, object] | None = None,
) -> torch.nn.Module:
    """Move a model to this worker's device, and replicate or shard it over all ranks.

    With "ddp" every rank has the whole model in a `DistributedDataParallel`, whose `.module` is the
    original. A model without trainable parameters is only moved.

    With "fsdp" every rank keeps a part of each parameter. This uses `fully_shard` (FSDP2), on GPUs
    and on the CPU, and returns the same model, changed in place. Make the optimizer after it. The
    parameters of one unit are gathered at a time. Units are the elements of the outermost
    `ModuleList`s, such as the blocks of a transformer, and then the rest of the model. Lists within
    an element are not split: they may be experts that some ranks skip, or attention heads that are
    too small to gather one by one. For other units, call `fully_shard` on them first: modules that
    are sharded already stay as they are.

    With both strategies all ranks start with the weights of rank 0. With one worker the model is
    moved, and neither replicated nor sharded.

    Arguments that only `FullyShardedDataParallel` (FSDP1) has, such as `sharding_strategy` or
    `auto_wrap_policy`, select that class. It needs GPUs, and each rank starts with its own weights
    unless you pass `sync_module_states=True`.

    Args:
        model: The model.
        move_to_device: Whether to move it, or the device to move it to. `fully_shard` always moves
            the modules that it shards, one unit after the other.
        parallel_strategy: "ddp", "fsdp", or None to only move the model.
        parallel_strategy_kwargs: Arguments of `DistributedDataParallel`, of `fully_shard` (`mesh`,
            `reshard_after_forward`, `mp_policy`, `offload_policy` and so on; default mesh: all
            ranks), or of `FullyShardedDataParallel`.

    Returns:
        The model that the rank trains.

    Raises:
        ConfigError: The strategy or an argument is unknown, or does not work on this device.
        NotInTrainingError: Called outside a train function.

    Example:
        >>> from dray.train import ScalingConfig
        >>> from dray.train.torch import TorchTrainer, prepare_model
        >>> def train_loop():
        ...     import torch
        ...     model = prepare_model(torch.nn.Linear(2, 1))
        ...     return type(model).__name__
        >>> scaling = ScalingConfig(num_workers=2)
        >>> TorchTrainer(train_loop, scaling_config=scaling).fit().return_value
        'DistributedDataParallel'
    """
    import torch

    world_size = current_session("prepare_model").assignment.world_size
    device = move_to_device if isinstance(move_to_device, torch.device) else get_device()
    options = dict(parallel_strategy_kwargs or {})
    wrapper = _wrapper(parallel_strategy, options, device)
    if parallel_strategy == "fsdp" and world_size > 1 and wrapper is _fully_shard(device):
        return _shard(model, device, options)
    if move_to_device:
        model = model.to(device)
    if world_size == 1 or wrapper is None:
        return model
    if parallel_strategy == "ddp":
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        if move_to_device and device.type in _TYPES_WITH_IDS and device.index is not None:
            options = {"device_ids": [device], "output_device": device, **options}
    wrapped: torch.nn.Module = wrapper(model, **options)
    return wrapped


def _wrapper(
    strategy: str | None, options: Mapping[str, object], device: torch.device
) -> Callable[..., object] | None:
    """Return the function or class that replicates or shards a model; None without a strategy."""
    if strategy is None:
        return None
    if strategy == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return _that_takes(options, DistributedDataParallel)
    if strategy != "fsdp":
        raise ConfigError(f"parallel_strategy must be 'ddp', 'fsdp' or None, not {strategy!r}")
    from torch.distributed.fsdp import FullyShardedDataParallel

    fully_shard = _fully_shard(device)
    wrapper = _that_takes(options, fully_shard, FullyShardedDataParallel)
    if wrapper is FullyShardedDataParallel and device.type == "cpu":
        raise ConfigError(
            f"FullyShardedDataParallel, which {_list(options)} is for, needs GPUs: "
            "ScalingConfig(use_gpu=True); on the CPU give arguments of fully_shard alone: "
            f"{_list(_keywords(fully_shard))}"
        )
    return wrapper


def _fully_shard(device: torch.device) -> Callable[..., object]:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:  # until torch 2.5
        if device.type != "cuda":
            raise ConfigError(
                f"parallel_strategy='fsdp' on a {device.type} device needs torch 2.6 or newer"
            ) from error
        from torch.distributed._composable.fsdp import fully_shard
    found: Callable[..., object] = fully_shard
    return found


def _that_takes(
    options: Mapping[str, object], *wrappers: Callable[..., object]
) -> Callable[..., object]:
    """Return the first wrapper that accepts all these arguments."""
    for wrapper in wrappers:
        if options.keys() <= _keywords(wrapper):
            return wrapper
    allowed = "; or ".join(f"{w.__name__}: {_list(_keywords(w))}" for w in wrappers)
    raise ConfigError(
        f"parallel_strategy_kwargs {_list(options)} are not all arguments of {allowed}"
    )


def _keywords(wrapper: Callable[..., object]) -> set[str]:
    return set(inspect.signature(wrapper).parameters) - {"module"}


def _list(names: Mapping[str, object] | set[str]) -> str:
    return ", ".join(sorted(names))


def _shard(
    model: torch.nn.Module, device: torch.device, options: dict[str, object]
) -> torch.nn.Module:
    """Shard a model's units one by one, so that at most one is unsharded on the device."""
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh

    # If the group is gloo's and the process sees a GPU, init_device_mesh makes another group: with
    # the default timeout, and in many versions with NCCL, which cannot connect ranks on one GPU.
    mesh = options.get("mesh") or DeviceMesh.from_group(distributed.group.WORLD, device.type)
    shard = _fully_shard(device)
    for unit in (*_units(model), model):
        for tensor in itertools.chain(unit.parameters(), unit.buffers()):
            _take_from_rank_zero(tensor, mesh, device)
        shard(unit, **{**options, "mesh": mesh})
    return model


def _units(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the elements of the outermost module lists that share no parameter with other modules.

    Modules that share a parameter must be gathered together, so they stay with the rest of the
    model.
    """
    owners = _owners(model)
    elements: dict[torch.nn.Module, None] = {}  # an ordered set: a list may repeat an element
    for element in _elements(model):
        inside = _owners(element)
        if inside and all(owners[parameter] == n for parameter, n in inside.items()):
            elements[element] = None
    return list(elements)


def _elements(module: torch.nn.Module) -> list[torch.nn.Module]:
    from torch.nn import ModuleDict, ModuleList

    found: list[torch.nn.Module] = []
    for child in module.children():
        is_block = isinstance(module, ModuleList) and not isinstance(child, ModuleList | ModuleDict)
        found += [child] if is_block else _elements(child)
    return found


def _owners(module: torch.nn.Module) -> Counter[torch.nn.Parameter]:
    """Count, for each parameter, the modules that own it directly."""
    return Counter(p for part in module.modules() for p in part.parameters(recurse=False))


def _take_from_rank_zero(tensor: torch.Tensor, mesh: DeviceMesh, device: torch.device) -> None:
    """Move a tensor to the device, and overwrite it with the values of the first rank of a mesh."""
    import torch
    from torch import distributed

    if type(tensor.data) is not torch.Tensor or tensor.is_meta:  # sharded, or without values
        return
    whole = tensor.data.to(device).contiguous()
    in_bytes = whole.flatten().view(torch.uint8)  # every backend can broadcast these
    for dimension in range(mesh.ndim):
        group = mesh.get_group(dimension)
        distributed.broadcast(in_bytes, distributed.get_global_rank(group, 0), group=group)
    tensor.data = whole
