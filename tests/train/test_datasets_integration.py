"""Datasets of a trainer: each rank its share, in one order, and each row once whatever fails."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dray.data
import dray.train
from dray.errors import ConfigError, WorkerGroupError
from dray.train import (
    BackendConfig,
    Checkpoint,
    DataConfig,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)

on_processes = pytest.mark.usefixtures("process_engine")


class ForTorch(BackendConfig):
    """Has torch imported once, and not by every worker."""

    modules = (*BackendConfig.modules, "torch.utils.data")


def fit(
    function: Any,
    storage: Path,
    datasets: Mapping[str, Any],
    workers: int = 2,
    config: Any = None,
    dataset_config: DataConfig | None = None,
    **run: Any,
) -> Result:
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        backend_config=ForTorch() if config and config.get("torch") else None,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.1}),
        run_config=RunConfig(name="run", storage_path=storage, **run),
        datasets=datasets,
        dataset_config=dataset_config,
    ).fit()


def read(config: dict[str, Any]) -> None:
    """Read epochs, and say at every step what was read, with a checkpoint every so often."""
    rank = dray.train.get_context().get_world_rank()
    batches = batches_of_torch(config) if config.get("torch") else batches_of_shard(config)
    fails = config.get("fails_at", -1)
    checkpoint = dray.train.get_checkpoint()
    begin = json.loads(Path(checkpoint.path, "epoch").read_text()) if checkpoint else 0
    steps = itertools.count()
    for epoch in range(begin, config["epochs"]):
        unsaved: list[int] = []
        for batch in batches(epoch):
            unsaved += batch.tolist()
            step = next(steps)
            if step == fails and rank == config["rank"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if step % config.get("every", 1) == 0:
                save(epoch, epoch, unsaved)
                unsaved = []
        save(epoch + 1, epoch, unsaved)


def batches_of_shard(config: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    shard = dray.train.get_dataset_shard("train")
    return lambda _: (batch["id"] for batch in shard.iter_batches(batch_size=config["batch"]))


def batches_of_torch(config: dict[str, Any]) -> Callable[[int], Iterable[Any]]:
    from torch.utils.data import DataLoader

    from dray.train.torch import prepare_data_loader

    loader = DataLoader(
        range(ROWS),
        config["batch"],
        shuffle=True,
        num_workers=config["torch"] - 1,
    )
    loader = prepare_data_loader(loader, resumable=True)

    def epoch_of(epoch: int) -> Iterable[Any]:
        loader.sampler.set_epoch(epoch)
        assert len(loader) <= ROWS // config["batch"]
        return loader

    return epoch_of


def save(begin: int, epoch: int, rows: list[int]) -> None:
    """Report rows of an epoch with a checkpoint that says in which one to begin."""
    metrics = {"epoch": epoch, "rows": rows}
    if dray.train.get_context().get_world_rank() != 0:
        dray.train.report(metrics)
        return
    with dray.train.checkpoint_dir() as saved:
        Path(saved, "epoch").write_text(json.dumps(begin))
        dray.train.report(metrics, Checkpoint(saved))


def steps_of(storage: Path) -> list[tuple[int, dict[int, list[int]]]]:
    """Return the epoch and each rank's rows of every report that counts.

    Those of an attempt do up to the one with which the next attempt begins.
    """
    said: dict[int, dict[int, dict[int, Any]]] = {}
    for path in (storage / "run/metrics").glob("rank-*.jsonl"):
        rank = int(path.stem.removeprefix("rank-"))
        for line in map(json.loads, path.read_text().splitlines()):
            of_report = said.setdefault(line["attempt"], {}).setdefault(line["report"], {})
            of_report[rank] = line["metrics"]
    counted: dict[int, tuple[int, dict[int, list[int]]]] = {}
    below = sys.maxsize
    for attempt in sorted(said, reverse=True):
        for report, by_rank in said[attempt].items():
            if report < below:
                epoch = next(iter(by_rank.values()))["epoch"]
                counted[report] = (epoch, {rank: of["rows"] for rank, of in by_rank.items()})
        below = min(below, *said[attempt])
    return [counted[report] for report in sorted(counted)]


def epochs_of(storage: Path) -> dict[int, list[int]]:
    """Return the rows that were seen in each epoch."""
    seen: dict[int, list[int]] = {}
    for epoch, by_rank in steps_of(storage):
        for rows in by_rank.values():
            seen.setdefault(epoch, []).extend(rows)
    return seen


ROWS = 240


@pytest.fixture
def numbers(tmp_path: Path) -> dray.data.Dataset:
    """The numbers below ROWS, in files of Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, (begin, end) in enumerate(((0, 150), (150, 151), (151, ROWS))):
        table = pa.table({"id": list(range(begin, end))})
        (tmp_path / "files").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / f"files/{number}.parquet", row_group_size=20)
    return dray.data.read_parquet(str(tmp_path / "files"))


@on_processes
def test_a_killed_epoch_goes_on_with_other_ranks_and_each_row_comes_once(
    numbers: dray.data.Dataset, tmp_path: Path
) -> None:
    datasets = {"train": numbers.map_batches(lambda batch: {"id": batch["id"]})}
    fit_with_kills(tmp_path, datasets, {"epochs": 2, "batch": 5, "every": 3})


@on_processes
def test_a_loader_of_torch_that_is_resumable_does_as_well(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    fit_with_kills(tmp_path, {}, {"epochs": 2, "batch": 5, "every": 3, "torch": 1})


def fit_with_kills(tmp_path: Path, datasets: Mapping[str, Any], config: dict[str, Any]) -> None:
    drawn = random.Random(7)
    for workers in (2, 3):
        failing = {**config, "fails_at": drawn.randrange(2, 12), "rank": drawn.randrange(workers)}
        with pytest.raises(WorkerGroupError):
            fit(read, tmp_path, datasets, workers, failing)
    fit(read, tmp_path, datasets, 2, config)
    seen = epochs_of(tmp_path)
    assert sorted(seen) == [0, 1]
    for rows in seen.values():
        assert sorted(rows) == sorted(set(rows))
        assert len(rows) > ROWS - 2  # of an odd number of rows that are left, one is left over


@on_processes
@pytest.mark.parametrize("rows", [17, 18])
def test_batches_of_all_ranks_can_be_gathered(tmp_path: Path, rows: int) -> None:
    """Gloo aborts a process that gets another number of bytes than it has room for."""
    torch = pytest.importorskip("torch")
    from dray.train.torch import TorchTrainer

    def train_loop() -> Any:
        shard = dray.train.get_dataset_shard("train")
        gathered = []
        for batch in shard.iter_torch_batches(batch_size=4):
            parts = [torch.zeros_like(batch["id"]) for _ in range(2)]
            torch.distributed.all_gather(parts, batch["id"])
            gathered += torch.cat(parts).tolist()
        return gathered

    trainer = TorchTrainer(
        train_loop,
        datasets={"train": dray.data.range(rows)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path),
    )
    assert sorted(trainer.fit().return_value) == list(range(rows - rows % 2))


@on_processes
def test_every_rank_gets_as_many_batches_and_whole_datasets_if_asked(tmp_path: Path) -> None:
    def train_loop() -> None:
        shards = {name: dray.train.get_dataset_shard(name) for name in ("train", "test")}
        assert shards["train"] is dray.train.get_dataset_shard("train")
        with pytest.raises(
            KeyError, match=r"^there is no dataset 'other'; the trainer was given 'train'"
        ):
            dray.train.get_dataset_shard("other")
        sizes = [len(batch["id"]) for batch in shards["train"].iter_batches(batch_size=4)]
        rows = [row["id"] for row in shards["test"].iter_rows()]
        dray.train.report({"sizes": sizes, "rows": rows})

    datasets = {"train": dray.data.range(14), "test": dray.data.range(3)}
    with pytest.raises(TypeError, match="datasets_to_split` should be 'all' or a list"):
        DataConfig(datasets_to_split="train")
    config = DataConfig(datasets_to_split=["train", "valid"])  # as a script for many sets has it
    with pytest.warns(UserWarning, match="names 'valid', and the datasets are train, test"):
        fit(train_loop, tmp_path, datasets, 3, dataset_config=config)
    lines = [path.read_text() for path in sorted((tmp_path / "run/metrics").glob("rank-*.jsonl"))]
    assert [json.loads(line)["metrics"] for line in lines] == [
        {"sizes": sizes, "rows": [0, 1, 2]} for sizes in ([4], [4], [4])
    ]
    events = map(json.loads, (tmp_path / "run/events.jsonl").read_text().splitlines())
    read = [event for event in events if event["event"] == "dataset read"]
    names = sorted((event["dataset"], event["rank"], event["epoch"]) for event in read)
    assert names == [(name, rank, 0) for name in ("test", "train") for rank in range(3)]
    assert all(0 <= event["waited_s"] < 60 for event in read)


class OneSplit(DataConfig):
    """Gives each rank its share as a program says."""

    def configure(
        self, datasets: Any, world_size: int, worker_handles: Any, worker_node_ids: Any
    ) -> list[dict[str, Any]]:
        splits = datasets["train"].streaming_split(
            world_size, equal=True, locality_hints=worker_node_ids
        )
        others = {"whole": datasets["whole"]}
        rest = super().configure(others, world_size, worker_handles, worker_node_ids)
        return [{"train": own, **more} for own, more in zip(splits, rest, strict=True)]


@on_processes
def test_a_large_table_is_there_to_the_end_and_is_split_as_a_program_says(
    tmp_path: Path,
) -> None:
    rows = dray.data.from_numpy(np.arange(300_000)).map_batches(lambda batch: batch)

    def train_loop() -> None:
        shard = dray.train.get_dataset_shard("train")
        whole = dray.train.get_dataset_shard("whole")
        read = (sum(len(batch["data"]) for batch in each.iter_batches()) for each in (shard, whole))
        dray.train.report(dict(zip(("rows", "whole"), read, strict=True)))
        with pytest.raises(KeyError, match=r"configure\(\) of OneSplit returns no share of 'test'"):
            dray.train.get_dataset_shard("test")

    datasets = {"train": rows, "test": [1], "whole": np.arange(3)}
    config = OneSplit(datasets_to_split=["train"])
    result = fit(train_loop, tmp_path, datasets, dataset_config=config)
    assert result.metrics == {"rows": 150_000, "whole": 3}


@on_processes
def test_options_of_ray_data_are_found_again_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dray.data.DataContext, "_current", None)
    context = dray.data.DataContext.get_current()
    context.set_config("root", "/data")
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    assert DataConfig.default_ingest_options().preserve_order
    limits = dray.data.ExecutionResources.for_limits(cpu=2)
    own = {"a": dray.data.ExecutionOptions(resource_limits=limits)}

    def look() -> list[Any]:
        there = dray.data.DataContext.get_current()
        of_a, of_b = (dray.train.get_dataset_shard(name).get_context() for name in "ab")
        return [
            (there.get_config("root"), there.get_config("x", 1), there.enable_progress_bars),
            of_a.execution_options.resource_limits == limits,
            of_b.execution_options.is_resource_limits_default(),
            of_b.execution_options.preserve_order,
        ]

    datasets = dict.fromkeys("ab", dray.data.range(4))
    found = fit(look, tmp_path, datasets, dataset_config=DataConfig(execution_options=own))
    assert found.return_value == [("/data", 1, False), True, True, True]


@pytest.mark.parametrize("engine_name", ["process", "ray"], indirect=True)
def test_datasets_of_ray_data_are_split_by_ray(engine: str, tmp_path: Path) -> None:
    class Dataset:
        __module__ = "ray.data.dataset"

    if engine == "process":
        given: Any = Dataset()
        with pytest.raises(ConfigError, match=r"are not on Ray: make it with dray\.data"):
            fit(read, tmp_path, {"train": given})
        return
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False  # they leave a thread

    def train_loop() -> None:
        shard = dray.train.get_dataset_shard("train")
        rows = [int(row["id"]) for _ in range(2) for row in shard.iter_rows()]
        own = [row["id"] for row in dray.train.get_dataset_shard("own").iter_rows()]
        dray.train.report({"rows": rows, "own": own})

    fit(train_loop, tmp_path, {"train": ray.data.range(20), "own": dray.data.range(4)})
    lines = [path.read_text() for path in sorted((tmp_path / "run/metrics").glob("rank-*.jsonl"))]
    said = [json.loads(line)["metrics"] for line in lines]
    assert [each["own"] for each in said] == [[0, 2], [1, 3]]
    assert sorted(itertools.chain(*(each["rows"] for each in said))) == sorted([*range(20)] * 2)
