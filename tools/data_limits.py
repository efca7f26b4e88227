"""A test of reading within limits: more data than memory, many small files, one large file.

    python tools/data_limits.py [GIB] [LIMIT_MIB]

Two processes read each case, like two ranks of a training. Their private memory is limited
(RLIMIT_DATA), so that a process that needs more fails. Arrow uses the allocator of the C library,
because its own allocator reserves a GiB before it uses any memory. The program prints the peak of
resident memory, and the longest wait for a batch. Equal files are links to one file, to save disk
space and time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RANKS = 2
BATCH_ROWS = 4096
COLUMNS = 16
# A rank may take at most this factor longer than another one.
_UNEVEN = 1.5


def write_file(path: Path, mebibytes: int, group_rows: int) -> None:
    """Write a Parquet file with so many MiB of 32-bit floats."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = (mebibytes << 20) // (4 * COLUMNS)
    drawn = np.random.default_rng(0)
    columns = {f"x{n}": drawn.random(rows, dtype=np.float32) for n in range(COLUMNS)}
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)


def link(original: Path, number: int) -> None:
    """Add links to a file, so that it exists so many times."""
    for copy in range(1, number):
        os.link(original, original.with_name(f"{original.stem}-{copy:04d}.parquet"))


def cases(folder: Path, gibibytes: int) -> Iterator[tuple[str, Path]]:
    """Write the files of each case; yield its name and its directory."""
    large, small, skewed = (folder / name for name in ("large", "small", "skewed"))
    for path in (large, small, skewed):
        path.mkdir()
    write_file(large / "a.parquet", 64, 1 << 20)
    link(large / "a.parquet", gibibytes * 16)
    yield f"{gibibytes} GiB, row groups of 64 MiB", large
    write_file(small / "a.parquet", 1, 1 << 16)
    link(small / "a.parquet", 1000)
    yield "1,000 files of 1 MiB", small
    write_file(skewed / "a.parquet", 1, 1 << 16)
    link(skewed / "a.parquet", 50)
    write_file(skewed / "b.parquet", 512, 1 << 16)
    yield "a file of 512 MiB among 50 of 1 MiB", skewed


def read(folder: str, rank: int, limit_mib: int) -> dict[str, float]:
    """Read a rank's share within a memory limit; return the figures."""
    import torch  # noqa: F401 (its memory is not what is measured)

    import dray.data
    from dray.data.iterator import DataIterator

    resource.setrlimit(resource.RLIMIT_DATA, (limit_mib << 20, limit_mib << 20))
    begun = time.perf_counter()
    shard = DataIterator(dray.data.read_parquet(folder), rank, RANKS, equal=True)
    first = longest = 0.0
    rows, asked = 0, time.perf_counter()
    for batch in shard.iter_torch_batches(batch_size=BATCH_ROWS):
        now = time.perf_counter()
        first = first or now - begun
        longest = max(longest, now - asked)
        rows += len(batch["x0"])
        asked = time.perf_counter()
    seconds = time.perf_counter() - begun
    return {
        "rows": rows,
        "seconds": seconds,
        "first": first,
        "longest": longest,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def read_by_ranks(folder: Path, limit_mib: int) -> list[dict[str, Any]]:
    """Read with one process for each rank; return the figures of each."""
    command = [sys.executable, __file__, "--rank", str(folder), str(limit_mib)]
    environ = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, env=environ)
        for rank in range(RANKS)
    ]
    told = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank has failed within {limit_mib} MiB")
    return [json.loads(text) for text in told]


def main() -> int:
    """Read all cases; print the figures, and return 1 if the ranks' times differ too much."""
    if "--rank" in sys.argv:
        place, most, rank = sys.argv[2:]
        print(json.dumps(read(place, int(rank), int(most))))
        return 0
    gibibytes, limit = (*map(int, sys.argv[1:]), *(8, 1024)[len(sys.argv) - 1 :])
    uneven = False
    with tempfile.TemporaryDirectory() as folder:
        for name, path in cases(Path(folder), gibibytes):
            told = read_by_ranks(path, limit)
            seconds = [each["seconds"] for each in told]
            uneven = uneven or max(seconds) > _UNEVEN * min(seconds)
            size = sum(each["rows"] for each in told) * COLUMNS * 4 / 2**20
            print(
                f"{name}: {size / max(seconds):.0f} MiB/s, first batch "
                f"{max(each['first'] for each in told):.2f} s, longest wait "
                f"{max(each['longest'] for each in told):.2f} s, ranks took "
                f"{', '.join(f'{each:.1f}' for each in seconds)} s, resident at most "
                f"{max(each['peak'] for each in told):.0f} MiB of {limit}",
                flush=True,
            )
    return 1 if uneven else 0


if __name__ == "__main__":
    sys.exit(main())
