"""Program: trains a ResNet-18 on random images, and records the images a second.

Arguments: the library, the number of workers, the number of measured steps.
"""

import importlib
import sys
import time
from typing import Any

from benchmarks.launch import launch
from benchmarks.records import record

WARM_UP_STEPS = 3
BATCH_SIZE = 32


def train_function(config: dict[str, Any]) -> None:
    import torch
    from torch import distributed, nn

    from benchmarks.resnet import ResNet18

    torch.manual_seed(0)
    model: nn.Module = ResNet18(channels=1, classes=10)
    if config["library"] != "torchrun":
        model = importlib.import_module(f"{config['library']}.train.torch").prepare_model(model)
    elif distributed.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(BATCH_SIZE, 1, 32, 32)
    labels = torch.randint(10, (BATCH_SIZE,))
    for step in range(WARM_UP_STEPS + config["steps"]):
        if step == WARM_UP_STEPS:
            distributed.barrier()
            began, cpu_before = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    distributed.barrier()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_before
    if distributed.get_rank() == 0:
        seen = config["steps"] * BATCH_SIZE * distributed.get_world_size()
        record(
            "trained",
            images_per_second=seen / seconds,
            cpu_seconds_per_step=cpu_seconds / config["steps"],
            threads=torch.get_num_threads(),
        )


if __name__ == "__main__":
    library, workers, steps = sys.argv[1:]
    launch(library, train_function, int(workers), config={"library": library, "steps": int(steps)})
