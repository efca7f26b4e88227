"""The XGBoost example learns what it says, and goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dray.train import Result
from tests.support.programs import environment

pytest.importorskip("xgboost")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "xgboost_trees.py"


def run_example(home: Path, rounds: int) -> str:
    options = [f"--rounds={rounds}", "--name=trees", f"--storage-path={home / 'runs'}"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env=environment(home, HOME=str(home)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_learns_and_goes_on_with_the_rounds_that_are_left(tmp_path: Path) -> None:
    run_example(tmp_path, rounds=10)
    output = run_example(tmp_path, rounds=40)
    result = Result.from_path(tmp_path / "runs" / "trees")
    assert len(result.best_checkpoints) == 4  # every ten rounds of both
    assert result.metrics is not None
    assert result.metrics["test-error"] < 0.06
    assert f"wrong on {result.metrics['test-error']:.1%} of the test rows" in output
