"""The measures of data: rows of Parquet to two training workers."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.cases import DRAY, RAY, TORCHRUN, Case, Comparison, Options, Sample
from benchmarks.harness import run
from benchmarks.program_data import IMAGES, write_images, write_rows

RATE = "MiB a second"
IMAGE_RATE = "images a second"
FIRST = "first batch"
MEMORY = "memory of a worker, while it reads"
_WORKERS = 2
# The files are kept for the next run; git ignores them.
_DATA = Path(__file__).parent / "results" / "data"


def data(options: Options) -> list[Case]:
    """Throughput from Parquet, time to the first batch, and memory of reading."""
    mebibytes, images = (256, 2048) if options.quick else (2048, 8192)
    of_rows, of_images = _DATA / "rows", _DATA / "images"

    def read(name: str, folder: Path, kind: str) -> Sample:
        told = run(options.command(name, "data", _WORKERS, folder, kind)).last("read")
        rate = "rows_per_second" if kind == IMAGES else "mebibytes_per_second"
        values = {
            IMAGE_RATE if kind == IMAGES else RATE: told[rate],
            FIRST: told["first_batch"],
            MEMORY: told["grown"],
        }
        return Sample(values, {"rows": told["rows"]})

    def numbers(name: str) -> Sample:
        write_rows(of_rows, mebibytes)
        return read(name, of_rows, "numbers")

    def pictures(name: str) -> Sample:
        write_images(of_images, images)
        return read(name, of_images, IMAGES)

    def case(title: str, rate: str, sample: Callable[[str], Sample]) -> Case:
        comparisons = (
            Comparison(rate, DRAY, RAY, 3, at_least=True),
            Comparison(rate, DRAY, TORCHRUN, 1, at_least=True),
            Comparison(FIRST, DRAY, RAY, 0.1),
            Comparison(FIRST, DRAY),
            Comparison(MEMORY, DRAY),
        )
        contestants = options.in_turn(sample, DRAY, RAY, TORCHRUN)
        return Case(f"{title}, {_WORKERS} workers", "", contestants, comparisons)

    return [
        case(f"{mebibytes} MiB of numbers", RATE, numbers),
        case(f"{images} JPEG images", IMAGE_RATE, pictures),
    ]


MEASURES: dict[str, Callable[[Options], list[Case]]] = {"data": data}
