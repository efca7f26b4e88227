"""The examples of boosted trees learn what they say, and go on where they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.train import Result
from tests.support.programs import run_example


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
@pytest.mark.parametrize(
    ("framework", "error"), [("xgboost", "test-error"), ("lightgbm", "test-binary_error")]
)
def test_learns_and_goes_on_with_the_rounds_that_are_left(
    framework: str, error: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    pytest.importorskip(framework)
    options = ("--name=trees", f"--storage-path={tmp_path / 'runs'}")
    run_example(f"{framework}_trees", tmp_path, *options, "--rounds=10", **variables)
    output = run_example(f"{framework}_trees", tmp_path, *options, "--rounds=40", **variables)
    result = Result.from_path(tmp_path / "runs" / "trees")
    assert len(result.best_checkpoints) == 4  # every ten rounds of both
    assert result.metrics is not None
    assert result.metrics[error] < 0.08
    assert f"wrong on {result.metrics[error]:.1%} of " in output
