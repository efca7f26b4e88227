"""Program: writes a run with many checkpoints and reports, and records the time to read it.

Arguments: the library, the number of checkpoints, the number of reports.
"""

import sys
import time
from pathlib import Path

from benchmarks.records import record
from dray.train import DataParallelTrainer, Result, RunConfig, ScalingConfig
from dray.train.storage.manifest import Committed, write_manifest
from dray.train.storage.sealed import seal


def fill(run: Path, checkpoints: int, reports: int) -> None:
    """Write the files of so many reports of one rank, some of them with a checkpoint."""
    head = '{"report":%d,"attempt":0,"time":1795401339.123456,'
    text = head + '"metrics":{"loss":0.25,"accuracy":0.5,"step":%d}}'
    with open(run / "metrics" / "rank-00000.jsonl", "wb") as file:
        for number in range(reports):
            file.write(seal((text % (number, number)).encode()) + b"\n")
    for number in range(checkpoints):
        path = run / f"checkpoint_{number:06d}"
        path.mkdir()
        (path / "model").write_bytes(b"weights")
        report = number * (reports // checkpoints)
        metrics: dict[int, dict[str, object]] = {0: {"metrics": {"loss": 0.25, "step": report}}}
        files = {"model": (7, "xxh3_64:0123456789abcdef")}
        committed = Committed(path, report, 1, files, metrics, time.time())
        write_manifest(path, committed, flush=False)


if __name__ == "__main__":
    _, *numbers = sys.argv[1:]
    place = Path("results").absolute()
    DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="long", storage_path=place),
    ).fit()
    fill(place / "long", *map(int, numbers))
    began = time.perf_counter()
    result = Result.from_path(place / "long")
    record("read", seconds=time.perf_counter() - began, checkpoints=len(result.best_checkpoints))
