"""Modules of a train function's first step: imported before its workers start."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dray.train.torch
from dray.train.torch import TorchConfig
from tests.support.programs import run, write


def names_nothing() -> None:
    dray.train.torch.get_device()


def names_it() -> object:
    return dray.train.torch.prepare_model


def names_an_optimizer() -> object:
    import torch

    return torch.optim.SGD


def calls_what_names_it() -> None:
    names_it()


def wrap(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def outer() -> Any:
        return inner()

    return outer


wrapped = wrap(names_it)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (names_nothing, False),
        (names_it, True),
        (names_an_optimizer, True),
        (calls_what_names_it, True),
        (functools.partial(lambda _: wrapped(), None), True),
    ],
)
def test_what_a_function_names_is_found(function: Callable[..., Any], found: bool) -> None:
    assert ("torch._dynamo" in TorchConfig().modules_for(function)) == found


# Prints whether workers find torch._dynamo, which every optimizer imports, and their server's pid.
PROGRAM = """
import sys
import dray.train.torch

def fit(function):
    trainer = dray.train.torch.TorchTrainer(
        function, run_config=RunConfig(storage_path=os.environ["STORAGE"])
    )
    found, server = trainer.fit().return_value
    print(found)
    return server

def look():
    return "torch._dynamo" in sys.modules, os.getppid()

def step():
    found = look()
    dray.train.torch.prepare_model
    return found

print(fit(step) == fit(look))
"""


def test_a_server_with_more_serves_who_needs_less(tmp_path: Path, storage: Path) -> None:
    done = run(write(tmp_path / "script.py", PROGRAM), storage, DRAY_PROGRESS="0")
    assert done.stdout.splitlines() == ["True", "True", "True"], done.stderr


# Prints whether a package is whole that its first import, before workers start, has left in parts.
HALF = """
from dataclasses import dataclass
import dray.train.backend

@dataclass
class Config(dray.train.backend.BackendConfig):
    modules: tuple = (*dray.train.backend.BackendConfig.modules, "halved")

def train():
    os.environ["WHOLE"] = "1"
    import halved
    return halved.part.value

trainer = DataParallelTrainer(
    train, backend_config=Config(), run_config=RunConfig(storage_path=os.environ["STORAGE"])
)
print(trainer.fit().return_value)
"""


def test_an_import_that_fails_in_the_server_leaves_no_part_behind(
    tmp_path: Path, storage: Path
) -> None:
    (tmp_path / "halved").mkdir()
    (tmp_path / "halved/part.py").write_text("value = 3")
    (tmp_path / "halved/__init__.py").write_text(
        'import os, halved.part\nif "WHOLE" not in os.environ:\n    raise RuntimeError("not here")'
    )
    done = run(write(tmp_path / "script.py", HALF), storage, DRAY_PROGRESS="0")
    assert done.stdout.splitlines() == ["3"], done.stderr
