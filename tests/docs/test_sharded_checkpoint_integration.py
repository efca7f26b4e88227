"""The example of sharded checkpoints: what four workers save, two others load, and any strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from dray.train import Result
from examples import sharded_checkpoint as example


def run(storage: Path, name: str, *options: str) -> Result:
    return example.run([f"--storage-path={storage}", f"--name={name}", *options])


def weights(result: Result) -> dict[str, torch.Tensor]:
    assert result.checkpoint is not None
    found = example.Network().state_dict()
    with result.checkpoint.as_directory() as directory:
        dcp.load({"model": found}, checkpoint_id=directory)
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_run_goes_on_with_other_workers_and_another_strategy(
    process_engine: None, storage: Path
) -> None:
    undisturbed = run(storage, "undisturbed", "--epochs=2")
    run(storage, "resharded", "--num-workers=4", "--epochs=1")
    first = Result.from_path(storage / "resharded").checkpoint
    assert first is not None
    files = [f"__{rank}_0.distcp" for rank in range(4)]
    assert sorted(path.name for path in Path(first.path).glob("__*")) == files
    resharded = run(storage, "resharded", "--num-workers=2", "--strategy=ddp", "--epochs=2")

    assert undisturbed.metrics is not None
    assert undisturbed.metrics["accuracy"] > 0.5
    assert list(resharded.metrics_dataframe["epoch"]) == [1, 2]
    one, other = weights(undisturbed), weights(resharded)
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-4)
