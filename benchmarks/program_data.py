"""Program: its workers read rows of Parquet as tensors, each its share, and do nothing more."""

import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.launch import make_trainer, start_library
from benchmarks.records import record

BATCH_ROWS = 4096
COLUMNS = 16
GROUP_ROWS = 1 << 16


def write_rows(folder: Path, mebibytes: int) -> None:
    """Write files of Parquet of so many MiB of 32-bit floats, of 64 MiB each, unless they are."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    rows = (64 << 20) // (4 * COLUMNS)
    for number in range(mebibytes // 64):
        path = folder / f"{number:03d}.parquet"
        if path.exists():
            continue
        drawn = np.random.default_rng(number)
        columns = {f"x{n}": drawn.random(rows, dtype=np.float32) for n in range(COLUMNS)}
        pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS)


def own_memory() -> float:
    """Return the largest memory of this process so far, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def batches(config: dict[str, Any]) -> Iterator[Any]:
    """Return this rank's batches, as the contestant makes them."""
    if config["library"] == "torchrun":
        return loader_batches(config["folder"])
    shard = importlib.import_module(f"{config['library']}.train").get_dataset_shard("train")
    return iter(shard.iter_torch_batches(batch_size=BATCH_ROWS))


def loader_batches(folder: str) -> Iterator[Any]:
    """Return batches of every second row group, by a DataLoader of torch."""
    import pyarrow.parquet as pq
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset

    rank, ranks = distributed.get_rank(), distributed.get_world_size()

    class Rows(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            for path in sorted(Path(folder).glob("*.parquet"))[rank::ranks]:
                for part in pq.ParquetFile(path).iter_batches(BATCH_ROWS):
                    yield {
                        name: torch.from_numpy(part.column(name).to_numpy().copy())
                        for name in part.schema.names
                    }

    return iter(DataLoader(Rows(), batch_size=None))


def train_function(config: dict[str, Any]) -> None:
    from torch import distributed

    distributed.barrier()
    began = time.perf_counter()
    rows, first = 0, 0.0
    before = own_memory()
    for batch in batches(config):
        first = first or time.perf_counter() - began
        rows += len(batch["x0"])
    distributed.barrier()
    seconds = time.perf_counter() - began
    if distributed.get_rank() == 0:
        mine = rows * COLUMNS * 4 / 2**20
        record(
            "read",
            mebibytes_per_second=mine * distributed.get_world_size() / seconds,
            first_batch=first,
            grown=own_memory() - before,
            rows=rows,
        )


def main() -> None:
    """Read as the library of the command line."""
    library, workers, folder, mebibytes = sys.argv[1:]
    config = {"library": library, "folder": folder}
    if library == "torchrun":
        from torch import distributed

        distributed.init_process_group("gloo")
        train_function(config)
        distributed.destroy_process_group()
        return
    write_rows(Path(folder), int(mebibytes))
    start_library(library, int(workers) if library != "ray" else int(workers) + 2)
    data = importlib.import_module(f"{library}.data")
    datasets = {"train": data.read_parquet(os.path.abspath(folder))}
    make_trainer(library, train_function, int(workers), config=config, datasets=datasets).fit()


if __name__ == "__main__":
    main()
