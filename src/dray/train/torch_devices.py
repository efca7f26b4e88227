"""Which devices of PyTorch a rank has."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dray.train.context import current_seat

if TYPE_CHECKING:
    import torch


def get_devices() -> list[torch.device]:
    """Returns the devices of this worker, CPU if it has no accelerator.

    Raises:
        NotInTrainingError: Called outside a train function.
    """
    import torch

    assignment = current_seat("get_devices").assignment
    if not assignment.gpus:
        return [torch.device("cpu")]
    # A worker that was given devices by an engine that knows them sees no others.
    first = 0 if assignment.own_devices else int(assignment.local_rank * assignment.gpus)
    return [torch.device("cuda", first + i) for i in range(math.ceil(assignment.gpus))]


def get_device() -> torch.device:
    """Returns the device of this worker, the first if it has several.

    Raises:
        NotInTrainingError: Called outside a train function.

    Example:
        >>> def train_loop():
        ...     model = Net().to(dray.train.torch.get_device())
    """
    current_seat("get_device")
    return get_devices()[0]
