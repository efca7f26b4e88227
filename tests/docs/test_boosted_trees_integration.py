"""The examples of boosted trees learn what they say, and go on where they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dray.train import Result
from tests.support.programs import environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(framework: str, home: Path, rounds: int, variables: dict[str, str]) -> str:
    options = [f"--rounds={rounds}", "--name=trees", f"--storage-path={home / 'runs'}"]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{framework}_trees.py"), *options],
        env=environment(home, HOME=str(home), **variables),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.parametrize(
    ("framework", "error"), [("xgboost", "test-error"), ("lightgbm", "test-binary_error")]
)
def test_learns_and_goes_on_with_the_rounds_that_are_left(
    framework: str, error: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    pytest.importorskip(framework)
    run_example(framework, tmp_path, rounds=10, variables=variables)
    output = run_example(framework, tmp_path, rounds=40, variables=variables)
    result = Result.from_path(tmp_path / "runs" / "trees")
    assert len(result.best_checkpoints) == 4  # every ten rounds of both
    assert result.metrics is not None
    assert result.metrics[error] < 0.08
    assert f"wrong on {result.metrics[error]:.1%} of " in output
