"""Program: trains a small transformer on one GPU, fit after fit, and records steps and speed.

Arguments: the library, the number of workers (1), the number of fits, and the number of measured
steps. If there are several fits, the worker kills itself once after the first step of the last one.
The library "fork" is none: each fit is a bare fork of a process that has imported PyTorch.
"""

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.launch import make_trainer, start_library
from benchmarks.records import record

STEPS_A_REPORT = 10


def train(config: dict[str, Any]) -> None:
    import torch

    library = config["library"]
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True)
    model: Any = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    if library in ("dray", "ray"):
        model = importlib.import_module(f"{library}.train.torch").prepare_model(model)
    else:
        model = model.to(device)
    if library == "torchrun":  # the other two need it for several workers only
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(16, 128, 1024, device=device)

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step().item()  # item() waits for the GPU
    record("stepped")
    if config["kill"] and not Path(config["mark"]).exists():
        Path(config["mark"]).touch()
        record("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    report = _report(library)
    for steps in (STEPS_A_REPORT, config["steps"]):  # warm-up, then measurement
        began = time.perf_counter()
        for _ in range(steps // STEPS_A_REPORT):
            for _ in range(STEPS_A_REPORT):
                loss = step()
            report({"loss": loss.item()})
    if config["steps"]:
        record("trained", seconds_per_step=(time.perf_counter() - began) / steps)


def _report(library: str) -> Any:
    if library in ("dray", "ray"):
        return importlib.import_module(f"{library}.train").report
    return lambda metrics: None


def fork_for_each_fit(fits: int, config: dict[str, Any]) -> None:
    importlib.import_module("torch._dynamo")  # with PyTorch, and what an optimizer imports
    for _ in range(fits):
        record("called")
        pid = os.fork()
        if pid == 0:
            train(config)
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    library, _, fits, steps = sys.argv[1:]
    config = {"library": library, "steps": int(steps), "kill": False}
    if library == "plain":
        train(config)
    elif library == "fork":
        fork_for_each_fit(int(fits), config)
    elif library == "torchrun":
        from torch import distributed

        distributed.init_process_group("nccl")
        train(config)
        distributed.destroy_process_group()
    else:
        start_library(library)
        config["mark"] = str(Path("killed").absolute())
        for fit in range(int(fits)):
            last = fit > 0 and fit == int(fits) - 1
            config.update(kill=last, steps=0 if fit else int(steps))
            trainer = make_trainer(
                library, train, 1, config=dict(config), max_failures=1, use_gpu=True
            )
            record("called")
            trainer.fit()
