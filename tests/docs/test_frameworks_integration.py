"""The examples of frameworks: they learn what is there to learn, on this machine and on Ray."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.programs import run_example

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = str(ROOT / "tests/support/beside_torch")


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.parametrize(
    ("name", "options", "measure", "bound"),
    [
        ("accelerate_digits", ["--epochs=4"], "epoch 3: accuracy", (0.8, 1)),
        ("jax_digits", ["--epochs=3"], "epoch 2: accuracy", (0.8, 1)),
        ("tensorflow_digits", ["--epochs=4"], "accuracy", (0.8, 1)),
        ("lightning_digits", ["--epochs=4"], "epoch 3: accuracy", (0.8, 1)),
        (
            "transformers_language_model",
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
    options = [f"--storage-path={tmp_path}", *options]
    output = run_example(name, tmp_path, *options, PYTHONPATH=STAND_IN, **variables)
    (value,) = re.findall(rf"^{measure} ([\d.]+)$", output, re.MULTILINE)
    assert bound[0] < float(value) <= bound[1]
