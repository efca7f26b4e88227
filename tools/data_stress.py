"""A stress test of trainings whose workers are killed within epochs.

    python tools/data_stress.py [KILLS] [SEED]

About half of the starts draw a new number of ranks. Each row of each epoch must be seen once,
counted from the checkpoint that the next start resumes from. At the end of an epoch, fewer rows
than there are ranks may be left out, because of `DataConfig(equal=True)`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import dray
import dray.data
from dray.train import WorkerGroupError
from tests.train.test_datasets_integration import ROWS, epochs_of, fit, read

EPOCHS = 3
MOST_RANKS = 3


def killed_run(storage: Path, kills: int, drawn: random.Random) -> dict[int, list[int]]:
    """Run a training to its end with so many kills; return the rows seen in each epoch."""
    rows = dray.data.range(ROWS).random_shuffle(seed=drawn.randrange(99))
    config = {"epochs": EPOCHS, "batch": drawn.randrange(1, 12), "every": drawn.randrange(1, 5)}
    workers = drawn.randrange(1, MOST_RANKS + 1)
    for _ in range(kills):
        if drawn.random() < 0.5:
            workers = drawn.randrange(1, MOST_RANKS + 1)
        fails = {"fails_at": drawn.randrange(20), "rank": drawn.randrange(workers)}
        try:
            fit(read, storage, {"train": rows}, workers, {**config, **fails})
            break  # it ended before the kill
        except WorkerGroupError:
            pass
    fit(read, storage, {"train": rows}, workers, config)
    return epochs_of(storage)


def main() -> int:
    """Kill as often as the command line says; print the rows that were lost or seen twice."""
    kills, seed = (*map(int, sys.argv[1:]), *(200, 0)[len(sys.argv) - 1 :])
    drawn = random.Random(seed)
    dray.init(num_cpus=8)
    lost = twice = 0
    for begun in range(0, kills, 5):
        with tempfile.TemporaryDirectory() as folder:
            seen = killed_run(Path(folder), min(5, kills - begun), drawn)
        for epoch in range(EPOCHS):
            rows = seen.get(epoch, [])
            missing = sorted(set(range(ROWS)) - set(rows))
            if len(missing) >= MOST_RANKS:
                print(f"epoch {epoch} of the run after kill {begun} lacks {missing}")
                lost += len(missing)
            twice += len(rows) - len(set(rows))
        print(f"{begun + 5} kills: {lost} rows lost, {twice} seen twice", flush=True)
    return 1 if lost or twice else 0


if __name__ == "__main__":
    sys.exit(main())
