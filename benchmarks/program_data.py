"""Program: each worker reads its share of Parquet rows as tensors, and does nothing else."""

import importlib
import io
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
IMAGES = "images"
IMAGE_ROWS = 64
IMAGE_SIZE = 256


def write_rows(folder: Path, mebibytes: int) -> None:
    """Write Parquet files with so many MiB of 32-bit floats, 64 MiB each, unless they exist."""
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


def write_images(folder: Path, number: int) -> None:
    """Write Parquet files with so many JPEG images, 1,024 in each file, unless they exist."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for part in range(number // 1024):
        path = folder / f"{part:03d}.parquet"
        if path.exists():
            continue
        drawn = np.random.default_rng(part)
        images = []
        for _ in range(1024):
            coarse = drawn.integers(0, 256, (32, 32, 3), np.uint8)  # noise is too large as JPEG
            image = Image.fromarray(coarse).resize((IMAGE_SIZE, IMAGE_SIZE))
            file = io.BytesIO()
            image.save(file, "JPEG")
            images.append(file.getvalue())
        pq.write_table(pa.table({"image": images}), path, row_group_size=IMAGE_ROWS)


def decoded(batch: dict[str, Any]) -> dict[str, Any]:
    """Decode a batch of images."""
    import numpy as np
    from PIL import Image

    return {"image": np.stack([Image.open(io.BytesIO(image)) for image in batch["image"]])}


def own_memory() -> float:
    """Return the peak memory of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def batches(config: dict[str, Any]) -> Iterator[Any]:
    """Return this rank's batches from the contestant."""
    size = IMAGE_ROWS if config["kind"] == IMAGES else BATCH_ROWS
    if config["library"] == "torchrun":
        return loader_batches(config["folder"], config["kind"], size)
    shard = importlib.import_module(f"{config['library']}.train").get_dataset_shard("train")
    return iter(shard.iter_torch_batches(batch_size=size))


def loader_batches(folder: str, kind: str, size: int) -> Iterator[Any]:
    """Return batches of every second file, from a DataLoader of torch."""
    import pyarrow.parquet as pq
    import torch
    from torch import distributed
    from torch.utils.data import DataLoader, IterableDataset

    rank, ranks = distributed.get_rank(), distributed.get_world_size()

    class Rows(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            for path in sorted(Path(folder).glob("*.parquet"))[rank::ranks]:
                for part in pq.ParquetFile(path).iter_batches(size):
                    if kind == IMAGES:
                        pixels = decoded({"image": part.column("image").to_pylist()})["image"]
                        yield {"image": torch.from_numpy(pixels)}
                        continue
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
        rows += len(next(iter(batch.values())))
    distributed.barrier()
    seconds = time.perf_counter() - began
    if distributed.get_rank() == 0:
        rate = rows * distributed.get_world_size() / seconds
        record(
            "read",
            rows_per_second=rate,
            mebibytes_per_second=rate * COLUMNS * 4 / 2**20,
            first_batch=first,
            grown=own_memory() - before,
            rows=rows,
        )


def main() -> None:
    """Read with the library that the command line names."""
    library, workers, folder, kind = sys.argv[1:]
    config = {"library": library, "folder": folder, "kind": kind}
    if library == "torchrun":
        from torch import distributed

        distributed.init_process_group("gloo")
        train_function(config)
        distributed.destroy_process_group()
        return
    start_library(library, int(workers) if library != "ray" else int(workers) + 2)
    data = importlib.import_module(f"{library}.data")
    rows = data.read_parquet(os.path.abspath(folder))
    datasets = {"train": rows.map_batches(decoded) if kind == IMAGES else rows}
    make_trainer(library, train_function, int(workers), config=config, datasets=datasets).fit()


if __name__ == "__main__":
    main()
