"""The measures of data: rows of Parquet to two training workers."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.cases import DRAY, RAY, TORCHRUN, Case, Comparison, Options, Sample
from benchmarks.harness import run
from benchmarks.program_data import write_rows

RATE = "MiB a second"
FIRST = "first batch"
MEMORY = "memory of a worker, while it reads"
_WORKERS = 2


def data(options: Options) -> list[Case]:
    """Throughput from Parquet, the time to the first batch, and the memory that reading takes."""
    mebibytes = 256 if options.quick else 2048
    folder = Path("results/rows").absolute()

    def sample(name: str) -> Sample:
        write_rows(folder, mebibytes)
        told = run(options.command(name, "data", _WORKERS, folder, mebibytes)).last("read")
        values = {
            RATE: told["mebibytes_per_second"],
            FIRST: told["first_batch"],
            MEMORY: told["grown"],
        }
        return Sample(values, {"rows": told["rows"]})

    comparisons = (
        Comparison(RATE, DRAY, RAY, 3, at_least=True),
        Comparison(RATE, DRAY, TORCHRUN, 1, at_least=True),
        Comparison(FIRST, DRAY, RAY, 0.1),
        Comparison(FIRST, DRAY),
        Comparison(MEMORY, DRAY),
    )
    contestants = options.in_turn(sample, DRAY, RAY, TORCHRUN)
    return [Case(f"{mebibytes} MiB, {_WORKERS} workers", "", contestants, comparisons)]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {"data": data}
