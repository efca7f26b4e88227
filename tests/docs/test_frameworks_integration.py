"""The examples of frameworks: they learn what is there to learn, on this machine and on Ray."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import environment

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = str(ROOT / "tests/support/beside_torch")


def run_example(name: str, storage: Path, variables: dict[str, str], *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), f"--storage-path={storage}", *options],
        env=environment(storage, PYTHONPATH=STAND_IN, **variables),
        capture_output=True,
        text=True,
        timeout=190,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.parametrize(
    ("name", "options", "measure", "bound"),
    [
        ("accelerate_digits.py", ["--epochs=4"], "epoch 3: accuracy", (0.8, 1)),
        ("jax_digits.py", ["--epochs=3"], "epoch 2: accuracy", (0.8, 1)),
        ("tensorflow_digits.py", ["--epochs=4"], "accuracy", (0.8, 1)),
        ("lightning_digits.py", ["--epochs=4"], "epoch 3: accuracy", (0.8, 1)),
        (
            "transformers_language_model.py",
            ["--steps=40", "--save-steps=20"],
            "step 40: loss",
            (0.5, 5),
        ),
    ],
)
def test_the_example_learns(
    tmp_path: Path,
    variables: dict[str, str],
    name: str,
    options: list[str],
    measure: str,
    bound: tuple[float, float],
) -> None:
    if "tensorflow" in name:
        pytest.importorskip("tensorflow")
    output = run_example(name, tmp_path, variables, *options)
    (value,) = re.findall(rf"^{measure} ([\d.]+)$", output, re.MULTILINE)
    assert bound[0] < float(value) <= bound[1]
