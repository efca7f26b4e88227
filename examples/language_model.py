"""Trains a small GPT on Python's manual with several workers; goes on where it stopped."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.checkpoint import state_dict as distributed_state
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dray.train
import dray.train.torch
from dray.train import Checkpoint, FailureConfig, Result, RunConfig, ScalingConfig

BYTES = 256  # the vocabulary
LAYERS, HEADS, WIDTH = 3, 4, 128
LEARNING_RATE = 0.003
WARM_UP = 20  # steps
PROMPT = "The for statement"


def train_loop(config: dict[str, Any]) -> None:
    rank = dray.train.get_context().get_world_rank()
    context, last_step = config["context"], config["steps"]
    train_loader, validation_loader = data_loaders(context, config["batch_size"])

    torch.manual_seed(0)
    model = dray.train.torch.prepare_model(GPT(context), parallel_strategy=config["strategy"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

    # Of a run that was stopped, go on after the last step that it has saved.
    first_step = 0
    checkpoint = dray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first_step = load(directory, model, optimizer)

    batches = endless(train_loader, first_step)
    for first in range(first_step, last_step, config["report_every"]):
        start = time.monotonic()
        steps = range(first, min(first + config["report_every"], last_step))
        loss = train(model, optimizer, batches, steps, last_step)
        validation_loss = evaluate(model, validation_loader)
        seconds = time.monotonic() - start

        with tempfile.TemporaryDirectory() as directory:
            save(directory, model, optimizer, steps.stop)
            checkpoint = Checkpoint.from_directory(directory) if rank == 0 else None
            metrics = {"step": steps.stop, "loss": loss, "validation_loss": validation_loss}
            dray.train.report(metrics, checkpoint=checkpoint)
        if rank == 0:
            losses = f"loss {loss:.4f}, validation loss {validation_loss:.4f}"
            print(f"step {steps.stop}: {losses}, {seconds:.1f} s")

    sample = generate(model, PROMPT, context, config["sample_length"])
    if rank == 0:
        print(f"what it writes:\n\n{sample}\n")


def data_loaders(context: int, batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return windows of the text to train on, and windows of its last tenth to validate with."""
    text = read_text()
    size = len(text) * 9 // 10
    train_set = Windows(text[:size], context, stride=1)
    validation_set = Windows(text[size:], context, stride=context)
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, drop_last=True)
    validation_loader = DataLoader(validation_set, batch_size=32, drop_last=True)
    return (
        dray.train.torch.prepare_data_loader(train_loader),
        dray.train.torch.prepare_data_loader(validation_loader),
    )


def endless(loader: DataLoader[Any], epoch: int) -> Iterator[Any]:
    """Yield batches, epoch after epoch, each shuffled in its own way."""
    while True:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Any],
    steps: range,
    last_step: int,
) -> float:
    """Train for some steps; return the mean loss over them and over all ranks."""
    model.train()
    total = torch.zeros((), device=dray.train.torch.get_device())
    for step, (inputs, targets) in zip(steps, batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min((step + 1) / WARM_UP, 1 - step / last_step)
        loss = loss_of(model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return mean_over_ranks(total / len(steps))


def evaluate(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the mean loss over the validation set, of which each rank has a share."""
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, inputs, targets) for inputs, targets in loader]
    return mean_over_ranks(torch.stack(losses).mean())


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of the next byte, in nats."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def mean_over_ranks(value: torch.Tensor) -> float:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return value.item()


def generate(model: nn.Module, prompt: str, context: int, length: int) -> str:
    """Return a prompt and what the model writes after it; all ranks must call it, and agree.

    Of a sharded model every rank has a part, so that all of them take part in every byte.
    """
    device = dray.train.torch.get_device()
    choice = torch.Generator().manual_seed(0)
    text = torch.tensor([list(prompt.encode())])
    model.eval()
    with torch.no_grad():
        for _ in range(length):
            scores = model(text[:, -context:].to(device))[:, -1].float().cpu()
            following = torch.multinomial(F.softmax(scores / 0.8, dim=-1), 1, generator=choice)
            text = torch.cat([text, following], dim=1)
    return bytes(text[0].tolist()).decode(errors="replace")


# The checkpoints: whole, so that any number of workers and either strategy can go on from them.


def save(directory: str, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Have rank 0 write the weights and the optimizer's state, gathered from all ranks."""
    whole = distributed_state.StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = distributed_state.get_state_dict(model, optimizer, options=whole)
    if dray.train.get_context().get_world_rank() == 0:
        torch.save(weights, os.path.join(directory, "model.pt"))
        torch.save({"optimizer": state, "step": step}, os.path.join(directory, "training.pt"))


def load(directory: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Have every rank read its part; return the step after which it was saved."""
    weights, training = (
        torch.load(os.path.join(directory, name), map_location="cpu")
        for name in ("model.pt", "training.pt")
    )
    distributed_state.set_state_dict(
        model,
        optimizer,
        model_state_dict=weights,
        optim_state_dict=training["optimizer"],
        options=distributed_state.StateDictOptions(full_state_dict=True),
    )
    step: int = training["step"]
    return step


# The model.


class GPT(nn.Module):
    """A transformer that predicts each byte from those before, as GPT-2 (Radford et al., 2019)."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, WIDTH)
        self.positions = nn.Embedding(context, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))  # sharded one by one
        self.norm = nn.LayerNorm(WIDTH)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_block = name.endswith("out.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS) if ends_block else 0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        features = self.bytes(text) + self.positions(positions)
        for block in self.blocks:
            features = block(features)
        return F.linear(self.norm(features), self.bytes.weight)  # one matrix reads and writes


class Block(nn.Module):
    """Attention to the bytes before, then two layers for each byte, with a way around both."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm = nn.LayerNorm(WIDTH)
        self.hidden = nn.Linear(WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = features + self.attention(self.attention_norm(features))
        return features + self.out(F.gelu(self.hidden(self.norm(features))))


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self) -> None:
        super().__init__()
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        batch, length, _ = features.shape
        parts = self.queries_keys_values(features).view(batch, length, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


# The data: the manual that Python's help() shows.


def read_text() -> torch.Tensor:
    """Return the manual as numbers of bytes, half a million of them."""
    from pydoc_data.topics import topics

    text = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


class Windows(Dataset[Any]):
    """Pieces of a text, each with the bytes that follow its own.

    Args:
        text: The text.
        context: Bytes of a piece.
        stride: Bytes from the start of one piece to that of the next.
    """

    def __init__(self, text: torch.Tensor, context: int, stride: int) -> None:
        self.pieces = text.unfold(0, context + 1, stride)  # a view, of no memory of its own

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.pieces[number].long()
        return piece[:-1], piece[1:]


def loss_by_frequency(text: torch.Tensor) -> float:
    """Return the loss of whoever knows how often each byte occurs, and no more."""
    shares = text.bincount() / len(text)
    return torch.special.entr(shares).sum().item()


# The command.


def main() -> None:
    options = parse_options()
    trainer = dray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={
            "strategy": options.strategy,
            "steps": options.steps,
            "report_every": options.report_every,
            "batch_size": options.batch_size,
            "context": options.context,
            "sample_length": options.sample_length,
        },
        scaling_config=ScalingConfig(num_workers=options.num_workers, use_gpu=options.use_gpu),
        run_config=RunConfig(
            name=options.name,
            storage_path=options.storage_path,
            failure_config=FailureConfig(max_failures=options.max_failures),
        ),
    )
    show(trainer.fit())


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--num-workers", type=int, default=2, help="workers")
    add("--use-gpu", action="store_true", help="give each worker a GPU")
    add("--strategy", choices=("ddp", "fsdp"), default="ddp", help="replicate or shard the model")
    add("--steps", type=int, default=500, help="steps, those of an earlier run included")
    add("--report-every", type=int, default=100, help="steps from one checkpoint to the next")
    add("--batch-size", type=int, default=16, help="pieces of text per worker and step")
    add("--context", type=int, default=64, help="bytes that the model looks back")
    add("--sample-length", type=int, default=300, help="bytes that the model writes at the end")
    add("--storage-path", default="~/dray_results", help="where runs are kept")
    add("--name", help="the run's name; one used before goes on with that run")
    add("--max-failures", type=int, default=1, help="how often to go on after a worker failed")
    return parser.parse_args()


def show(result: Result) -> None:
    """Print how the losses fell, and what they can be compared with."""
    table = Table("step", "loss", "validation loss", "checkpoint")
    for checkpoint, metrics in result.best_checkpoints:
        losses = f"{metrics['loss']:.3f}", f"{metrics['validation_loss']:.3f}"
        table.add_row(str(metrics["step"]), *losses, Path(checkpoint.path).name)
    Console().print(table)
    text = read_text()
    known = loss_by_frequency(text[len(text) * 9 // 10 :])
    print(
        f"Nothing learned is a loss of {math.log(BYTES):.3f}, the bytes' frequencies {known:.3f}."
    )
    print(f"The checkpoints are in {result.path}.")


if __name__ == "__main__":
    main()
