"""Pools of workers: how many there are, what becomes of those that die, and that they all end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dray
import dray.data
from dray.data import ActorPoolStrategy
from dray.data.expressions import monotonically_increasing_id, random
from dray.data.pools import advice
from dray.errors import ActorDiedError, DataFunctionError, InfeasibleError, WorkerDiedError
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig, collective
from dray.util.state import list_actors

Batch = dict[str, Any]

# There are two.
SPECIAL = {"special": 1}
ROWS = dray.data.range(40)


class Told:
    """Writes down what happens, in whichever process it does."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "told"

    def tell(self, word: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{word}\n")

    def words(self) -> list[str]:
        return self._path.read_text().split() if self._path.exists() else []


class Pids:
    """Adds the process's id to each row; all but the first one when there are two processes."""

    def __init__(self, told: Told) -> None:
        self._told = told
        told.tell("made")

    def __call__(self, row: Batch) -> Batch:
        while row["id"] and self._told.words().count("made") < 2:
            time.sleep(0.01)
        return {**row, "pid": os.getpid()}


@pytest.mark.parametrize(
    "number",
    [
        {"concurrency": 4},
        {"concurrency": (1, 4)},
        {"concurrency": (1, 4, 1)},
        {"compute": ActorPoolStrategy(min_size=1, max_size=4)},
    ],
)
def test_a_pool_has_as_many_workers_as_there_is_room_for(
    core_engine: str, number: dict[str, Any], tmp_path: Path
) -> None:
    single: Any = ROWS.map_batches(lambda batch: batch, batch_size=1)  # or there was one block
    pool = single.map(Pids, fn_constructor_args=[Told(tmp_path)], resources=SPECIAL, **number)
    holder = dray.remote(num_cpus=0, resources=SPECIAL)(Same).remote()
    dray.get(holder.__ray_ready__.remote())
    left = iter(pool.iter_rows())
    first = next(left)
    dray.kill(holder)  # while the first worker is busy, and waits for the second one
    rows = [first, *left]
    assert [row["id"] for row in rows] == list(range(40))
    assert len({row["pid"] for row in rows}) == 2


class Same:
    def __call__(self, batch: Batch) -> Batch:
        return batch


def test_pools_make_room_for_each_other(core_engine: str) -> None:
    def pool(rows: Any, most: int = 2, special: int = 1) -> Any:
        return rows.map_batches(
            Same, batch_size=2, concurrency=most, resources={"special": special}
        )

    assert pool(pool(ROWS)).count() == 40
    # Each worker takes all that there is, so that the three have it by turns.
    alone = pool(pool(pool(dray.data.range(12), 1, 2), 2), 4, 2)
    assert [row["id"] for row in alone.take_all()] == list(range(12))

    twice = pool(ROWS)
    batches = iter(twice.iter_batches(batch_size=2))
    found = [next(batches)]
    assert twice.count() == 40
    assert np.concatenate([batch["id"] for batch in [*found, *batches]]).tolist() == [*range(40)]
    with pytest.raises(InfeasibleError, match="special"):
        pool(ROWS, 1, 3).count()


class WaitsForTwo:
    """Makes its first row when there are two of its kind."""

    def __init__(self, told: Told) -> None:
        self._told = told
        told.tell("made")

    def __call__(self, row: Batch) -> Batch:
        while self._told.words().count("made") < 2:
            time.sleep(0.01)
        return row


def test_each_rank_of_a_training_has_a_worker(core_engine: str, tmp_path: Path) -> None:
    rows: Any = ROWS
    pool = rows.map(
        WaitsForTwo, fn_constructor_args=[Told(tmp_path)], concurrency=2, resources=SPECIAL
    )

    def train() -> None:
        for _ in dray.train.get_dataset_shard("train").iter_batches(batch_size=2):
            collective.barrier()  # as with gradients, no rank goes on alone
        dray.train.report({"done": True})

    result = DataParallelTrainer(
        train,
        datasets={"train": pool},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path)),
    ).fit()
    assert result.metrics == {"done": True}


class Dies:
    """Is killed at a row, as often as is said."""

    def __init__(self, told: Told, row: int, times: int, at_start: int = 0) -> None:
        self._told, self._row, self._times = told, row, times
        told.tell("made")
        if told.words().count("made") <= at_start:
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, batch: Batch) -> Batch:
        if self._row in batch["id"]:
            self._told.tell("there")
            if self._told.words().count("there") <= self._times:
                os.kill(os.getpid(), signal.SIGKILL)
        return batch


def test_what_dies_with_a_worker_is_tried_again(
    core_engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def pool(name: str, *arguments: int, **options: Any) -> Any:
        (tmp_path / name).mkdir()
        told = Told(tmp_path / name)
        given: Any = {"fn_constructor_args": [told, *arguments], "concurrency": 2, **options}
        return told, ROWS.map_batches(Dies, batch_size=2, **given)

    told, once = pool("once", 20, 1)
    assert [row["id"] for row in once.take_all()] == list(range(40))
    assert told.words().count("there") == 2
    assert "a worker of map_batches(Dies) died on rows 0 to 39" in caplog.text

    told, always = pool("always", 20, 99)
    with pytest.raises(
        DataFunctionError, match=r"failed on rows .* its worker died 4 times"
    ) as info:
        always.take_all()
    assert isinstance(info.value, WorkerDiedError)
    deaths = told.words().count("there")
    if core_engine == "process":
        assert deaths == 4
        assert "SIGKILL" in str(info.value)
    else:  # Ray does not say how, nor at once which of two blocks it was
        assert 4 <= deaths < 8

    told, own = pool("own", 20, 99, max_restarts=0)
    with pytest.raises(WorkerDiedError, match="its worker died: "):
        own.count()
    assert told.words().count("there") == 1

    told, starts = pool("starts", 99, 0, 3, concurrency=1)
    assert starts.count() == 40
    assert told.words().count("made") == 4
    told, never = pool("never", 99, 0, 99)
    with pytest.raises(WorkerDiedError, match="before it had begun: its worker died 4 times"):
        never.count()


class Counts:
    def __init__(self, told: Told) -> None:
        self._told = told
        told.tell("made")

    def __call__(self, batch: Batch) -> Batch:
        for _ in batch["id"]:
            self._told.tell("row")
        return batch


def test_functions_run_once_for_what_is_kept_in_memory(core_engine: str, tmp_path: Path) -> None:
    told = Told(tmp_path)

    def once(kept: Any) -> list[Any]:
        rows = list(kept)
        words, made = told.words(), [row["id"] for part in rows for row in part.take_all()]
        assert words == told.words()
        (tmp_path / "told").unlink()
        assert words.count("made") == 1
        assert words.count("row") == 10
        return sorted(made)

    ten = dray.data.range(10)
    pool = ten.map_batches(Counts, fn_constructor_args=[told], batch_size=5, concurrency=1)
    assert once([pool.materialize()]) == list(range(10))
    assert once([pool.iterator().materialize()]) == list(range(10))
    assert once(pool.split(2)) == list(range(10))
    assert once(pool.split_proportionately([0.5])) == list(range(10))
    assert once(pool.train_test_split(0.2)) == list(range(10))
    assert once(pool.train_test_split(0.2, shuffle=True, seed=1)) == list(range(10))

    def told_row(row: Batch) -> Batch:
        told.tell("row")
        return row

    ten.map(told_row).materialize()
    ten.filter(lambda row: told_row(row) is None).materialize()  # there is a schema, if no row
    assert told.words() == ["row"] * 20


class Async:
    """Has something that belongs to the loop it was made in."""

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None

    async def __call__(self, row: Batch) -> Batch:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            await asyncio.sleep(0)
        return {"id": row["id"] + 1}


class AsyncList(Async):
    async def __call__(self, row: Batch) -> Any:
        return [await super().__call__(row)] * 2


class AsyncItems:
    async def __call__(self, row: Batch) -> AsyncIterator[Batch]:
        await asyncio.sleep(0)
        yield {"id": row["id"]}
        yield {"id": row["id"] + 1}


def test_functions_may_be_async(engine: str) -> None:
    three: Any = dray.data.range(3)

    def ids(rows: Any) -> list[int]:
        return [row["id"] for row in rows.take_all()]

    assert ids(three.map(Async, concurrency=1)) == [1, 2, 3]
    assert ids(three.map_batches(Async, concurrency=2, batch_size=2)) == [1, 2, 3]
    assert ids(three.flat_map(AsyncList, concurrency=1)) == [1, 1, 2, 2, 3, 3]
    assert ids(three.flat_map(AsyncItems, concurrency=1)) == [0, 1, 1, 2, 2, 3]
    assert ids(three.map_batches(AsyncItems, concurrency=1)) == [0, 1, 2, 1, 2, 3]

    async def is_odd(row: Batch) -> bool:
        return bool(row["id"] % 2)

    assert ids(three.filter(is_odd)) == [1]  # an actor does it, as with Ray
    assert ids(three.map(Async)) == [1, 2, 3]


class Fails:
    def __init__(self) -> None:
        raise ValueError("no model")

    def __call__(self, batch: Batch) -> Batch:
        return batch


class Hangs:
    """Makes a batch, says so, and has the next ones take for ever; or interrupts the program."""

    def __init__(self, told: Told, driver: int | None = None) -> None:
        self._told, self._driver = told, driver

    def __call__(self, batch: Batch) -> Iterator[Batch]:
        if 0 in batch["id"]:
            yield batch
            return
        self._told.tell(f"{os.getpid()}")
        if self._driver is not None and 1 in batch["id"]:
            os.kill(self._driver, signal.SIGINT)
        time.sleep(3600)


def test_no_worker_stays_when_an_iteration_ends_early(core_engine: str, tmp_path: Path) -> None:
    """That nothing is left is what the fixture of all tests looks at."""

    def pool(*arguments: Any) -> Any:
        return ROWS.map_batches(
            Hangs,
            fn_constructor_args=arguments,
            batch_size=1,
            concurrency=2,
            resources=SPECIAL,
        )

    told = Told(tmp_path)
    for end in (None, ZeroDivisionError()):
        with contextlib.suppress(ZeroDivisionError):
            for _ in pool(told).iter_batches(batch_size=1, prefetch_batches=0):
                if end is None:
                    break
                raise end
    with pytest.raises(KeyboardInterrupt):
        pool(told, os.getpid()).count()
    with pytest.raises(ActorDiedError, match="no model"):
        ROWS.map_batches(Fails, concurrency=2, resources=SPECIAL).count()
    # Somebody may keep the traceback, as notebooks do.
    with pytest.raises(DataFunctionError) as kept:
        pool(told).map(lambda row: 1 / row["id"]).count()
    assert kept.tb
    assert pool(told).take(1) == [{"id": 0}]


def test_a_slow_function_beside_idle_cores_is_advised_to_have_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = [0.0]

    def slow(batch: Batch) -> Batch:
        seconds[0] += 5
        return batch

    monkeypatch.setattr(advice, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    rows = dray.data.range(100).map_batches(slow, batch_size=10)
    for batch in rows.iter_batches(batch_size=10, prefetch_batches=0):
        del batch
        seconds[0] += 50  # the reader is slower, so nobody waits for the function
    assert "concurrency" not in caplog.text
    rows.materialize()
    assert caplog.text.count("map_batches(slow) has taken 25 s") == 1
    assert "runs it in that many" in caplog.text


def test_a_column_may_be_added_in_workers(core_engine: str) -> None:
    def where(batch: Any) -> Any:
        own = dray.get_runtime_context().get_actor_id()
        (kind,) = [actor.class_name for actor in list_actors() if actor.actor_id == own]
        return [[os.getpid(), kind]] * len(batch)  # lists that Arrow has no type for

    rows = ROWS.add_column("where", where, concurrency=1).take_all()
    ((pid, kind),) = {tuple(row["where"]) for row in rows}
    assert (pid == os.getpid()) == (core_engine == "inline")
    assert kind == "add_column(where)"  # so what it prints has this before it, too


def test_workers_number_rows_and_draw_numbers(core_engine: str) -> None:
    rows = dray.data.range(40).map_batches(lambda batch: batch, batch_size=5)
    numbers = {
        "n": monotonically_increasing_id(),
        "x": random(seed=1, reseed_after_execution=False),
    }
    made = rows.with_columns(numbers, concurrency=2).take_all()
    here = rows.with_columns(numbers).take_all()
    assert len({row["n"] for row in [*made, *here]}) == 80
    assert [row["x"] for row in made] == [row["x"] for row in here]
