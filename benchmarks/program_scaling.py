"""Program: every rank reports as fast as it can, and the driver records its own cost.

Arguments: the library (only dray has such callbacks), the number of workers, and the number of
reports of each worker.
"""

import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.launch import start_library, told_here
from benchmarks.records import record
from dray import train


class Meter(train.UserCallback):
    """A callback that measures the time between the first and the last report of all ranks.

    Args:
        reports: The number of the last report.
    """

    def __init__(self, reports: int) -> None:
        self._reports = reports
        self._events = 0

    def after_report(
        self, run_context: train.RunContext, metrics: list[dict[str, Any]], checkpoint: Any
    ) -> None:
        if metrics[0]["step"] == 0:
            self._began, self._cpu_before = time.perf_counter(), time.process_time()
            return
        self._events += len(metrics)
        if metrics[0]["step"] == self._reports:
            record(
                "handled",
                cpu_s=time.process_time() - self._cpu_before,
                wall_s=time.perf_counter() - self._began,
                events=self._events,
            )


def train_function(config: dict[str, Any]) -> None:
    record("entered")
    for step in range(1 + config["reports"]):
        train.report({"step": step, "loss": 1.5 / (step + 1), "learning_rate": 1e-3})
        if step == 0:
            train.collective.barrier()  # no rank reports before the meter runs


if __name__ == "__main__":
    library, workers, reports = sys.argv[1:]
    start_library(library)
    trainer = train.DataParallelTrainer(
        told_here(train_function),
        train_loop_config={"reports": int(reports)},
        scaling_config=train.ScalingConfig(
            num_workers=int(workers),
            resources_per_worker={"CPU": 0.02},
            placement_strategy="SPREAD",
        ),
        run_config=train.RunConfig(
            storage_path=str(Path("results").absolute()), callbacks=[Meter(int(reports))]
        ),
    )
    record("called")
    trainer.fit()
    record("returned")
