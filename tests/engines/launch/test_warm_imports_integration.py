"""Modules of a train function's first step: imported before its workers start."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.programs import run, write

# Prints whether workers find torch._dynamo, which every optimizer imports, and their server's pid.
TELL = """
import sys
import dray.train.torch

def look():
    return "torch._dynamo" in sys.modules, os.getppid()

def fit(function, **options):
    trainer = dray.train.torch.TorchTrainer(
        function, run_config=RunConfig(storage_path=os.environ["STORAGE"]), **options
    )
    found, server = trainer.fit().return_value
    print(found)
    return server
"""


def output_of(tmp_path: Path, storage: Path, code: str) -> list[str]:
    done = run(write(tmp_path / "script.py", TELL + code), storage, DRAY_PROGRESS="0")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def train(): return look()", False),
        ("def train(): found = look(); dray.train.torch.prepare_model; return found", True),
        ("def train(): found = look(); import torch; torch.optim.SGD; return found", True),
        (
            "def build(): dray.train.torch.prepare_model\n"
            "def train(): found = look(); build(); return found",
            True,
        ),
        (
            "import functools\n"
            "def wrap(inner):\n"
            "    @functools.wraps(inner)\n"
            "    def outer(): return inner()\n"
            "    return outer\n"
            "@wrap\n"
            "def loop(found): dray.train.torch.prepare_model; return found\n"
            "def train(): return look()\n"
            "train = functools.partial(lambda f: (look(), lambda: loop)[0], None)",
            True,
        ),
    ],
)
def test_what_a_function_names_is_imported_before_its_workers(
    code: str, found: bool, tmp_path: Path, storage: Path
) -> None:
    assert output_of(tmp_path, storage, f"{code}\nfit(train)") == [str(found)]


def test_a_server_with_more_serves_who_needs_less(tmp_path: Path, storage: Path) -> None:
    code = """
        def step():
            found = look()
            dray.train.torch.prepare_model
            return found

        print(fit(step) == fit(lambda: look()))
    """
    told = output_of(tmp_path, storage, textwrap.dedent(code))
    assert told == ["True", "True", "True"]
