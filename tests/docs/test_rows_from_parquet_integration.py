"""The example of rows from Parquet learns what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dray.train import Result
from tests.support.programs import environment

SCRIPT = Path(__file__).resolve().parents[2] / "examples/rows_from_parquet.py"


def test_learns_digits_and_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    for workers, epochs in ((2, 1), (1, 4)):
        options = [f"--num-workers={workers}", f"--epochs={epochs}", "--name=digits"]
        done = subprocess.run(
            [sys.executable, str(SCRIPT), *options, f"--storage-path={tmp_path / 'runs'}"],
            env=environment(tmp_path, HOME=str(tmp_path)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr + done.stdout
    metrics = Result.from_path(tmp_path / "runs/digits").metrics
    assert metrics is not None
    assert metrics["epoch"] == 3
    assert metrics["accuracy"] > 0.9
