"""Arguments of datasets and their makers: those that there are none of are errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.expressions import col
from dray.errors import AbsentArgumentError, AbsentNameError, ConfigError

data: Any = dray.data
ROWS: Any = dray.data.range(8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ROWS.random_shuffle(sed=0), r"'sed'; did you mean seed\?"),
        (lambda: ROWS.repartition(2, shufl=True), "'shufl'"),
        (lambda: ROWS.join(ROWS, "inner", 1, ("id",), left_sufix="_l"), "'left_sufix'"),
        (lambda: data.from_items([1], parallels=2), "'parallels'"),
        (lambda: data.range(2, parallels=2), "'parallels'"),
        (lambda: data.range_tensor(2, shap=(2,)), "'shap'"),
        (lambda: data.from_numpy(np.ones(2), col="x"), "'col'"),
        (lambda: data.from_pandas([], overwrite=2), "'overwrite'"),
        (lambda: data.from_arrow([], overwrite=2), "'overwrite'"),
        (lambda: data.from_huggingface([1], splt="x"), "'splt'"),
        (lambda: data.from_torch([1], local=True), "'local'"),
    ],
)
def test_a_misspelled_argument_is_an_error(call: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=f"argument {said}"):
        call()


def test_type_checkers_and_help_know_the_arguments_of_batches() -> None:
    dataset = dray.data.range(3)
    for method in (dataset.iter_batches, dataset.iter_torch_batches, dataset.iter_jax_batches):
        assert "batch_size" in inspect.signature(method).parameters
        assert "batch_size: " in (inspect.getdoc(method) or "")
    assert [len(batch["id"]) for batch in dataset.iter_batches(batch_size=2)] == [2, 1]
    with pytest.raises(TypeError, match="batch_sze"):
        dataset.iter_batches(batch_sze=2)  # type: ignore[call-arg]


def test_a_misspelled_argument_names_the_method_and_what_it_takes() -> None:
    for method, misspelled, meant in (
        (ROWS.map_batches, "batch_sise", "batch_size"),
        (ROWS.map, "num_cpu", "num_cpus"),
        (ROWS.flat_map, "fn_arg", "fn_args"),
        (ROWS.filter, "concurrent", "concurrency"),
        (ROWS.groupby("id").map_groups, "batch_fromat", "batch_format"),
    ):
        said = rf"^{method.__qualname__}\(\) has no argument '{misspelled}'; did you mean {meant}\?"
        with pytest.raises(AbsentArgumentError, match=said):
            method(len, **{misspelled: 1})
    with pytest.raises(AbsentArgumentError, match=r"^GroupedData.with_column\(\) has no argument"):
        ROWS.groupby("id").with_column("x", col("id"), num_gpu=1)
    with pytest.raises(AbsentArgumentError, match=r"; it takes cols, concurrency, .*num_gpus"):
        ROWS.select_columns("id", zzz=1)


def test_arguments_of_rays_that_dray_does_not_need_are_taken(tmp_path: Path) -> None:
    table = pa.table({"x": [1]})
    data.range(2).write_csv(tmp_path)
    of_tasks = {"resources": {"x": 1}, "label_selector": {"x": "y"}, "accelerator_type": "T4"}
    made = [
        data.range(2, parallelism=2, concurrency=1, override_num_blocks=2),
        data.range_tensor(2, parallelism=2, concurrency=1, override_num_blocks=2),
        data.from_items([1, 2], parallelism=2, override_num_blocks=2),
        data.from_pandas([pd.DataFrame({"x": [1]})] * 2, 2),
        data.from_arrow([table, table], override_num_blocks=2),
        data.from_torch([1, 2], local_read=True),
        data.read_csv(tmp_path, **of_tasks, runtime_env={}, max_calls=1, fallback_strategy=[]),
        data.range(2).map(dict, max_calls=2, ray_remote_args_fn=None, fallback_strategy=None),
        data.range(2).random_shuffle(seed=np.int64(3), num_blocks=2, num_cpus=1),
        data.range(2).repartition(None, 1, strict=True, shuffle=True, keys=["id"], sort=True),
        data.range(2).join(data.range(2), "inner", 2, partition_size_hint=1, validate_schemas=True),
    ]
    assert [dataset.count() for dataset in made] == [2] * len(made)
    assert data.from_items([1, None]).unique("item", True) == [1]


@pytest.mark.parametrize("seed", ["x", "3", 1.5, -1, True])
def test_a_seed_must_be_a_whole_number(seed: Any) -> None:
    for call in (
        lambda: ROWS.random_shuffle(seed=seed),
        lambda: ROWS.random_sample(0.5, seed=seed),
        lambda: ROWS.train_test_split(0.5, shuffle=True, seed=seed),
        lambda: list(ROWS.iter_batches(local_shuffle_buffer_size=4, local_shuffle_seed=seed)),
    ):
        with pytest.raises(ConfigError, match="seed must be a whole number, 0 or more, not"):
            call()


def test_two_columns_of_one_name_are_refused() -> None:
    rows = data.from_items([{"a": 1, "b": 2}])
    with pytest.raises(ConfigError, match="select_columns gives several columns the name a"):
        rows.select_columns(["a", "a"])
    for names in ({"a": "b"}, ["x", "x"]):
        with pytest.raises(
            ConfigError, match=r"rename_columns gives several columns the name [bx]"
        ):
            rows.rename_columns(names).take_all()
    assert rows.rename_columns({"a": "b", "b": "a"}).take_all() == [{"b": 1, "a": 2}]
    doubled = rows.map_batches(lambda batch: pd.DataFrame([[1, 2, 3]], columns=["a", "a", "b"]))
    with pytest.raises(ConfigError, match=r"returns has several columns with the name a$"):
        doubled.take_all()
    with pytest.raises(ConfigError, match="the table has several columns with the name a"):
        data.from_arrow(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(ConfigError, match="the DataFrame has several columns with the name 1"):
        data.from_pandas(pd.DataFrame([[1, 2]], columns=[1, "1"]))


def test_files_with_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,a\n1,2,3\n")
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "a.parquet")
    for read in (data.read_csv, data.read_parquet):
        with pytest.raises(ConfigError, match=r"/a\..* has several columns with the name a$"):
            read(tmp_path / f"a.{read.__name__[5:]}").take(1)


def test_datasets_of_nothing() -> None:
    for nothing in (ROWS.limit(0), ROWS.filter(expr="id < 0"), data.from_items([])):
        with pytest.raises(ConfigError, match="the dataset has no rows"):
            nothing.take_batch()
    with pytest.raises(ConfigError, match="from_items takes a list of values, not 5"):
        data.from_items(5)


@pytest.mark.parametrize("number", [0, 1.5, "2"])
def test_a_number_of_parts_is_a_whole_one(number: Any) -> None:
    for split in (ROWS.split, ROWS.streaming_split):
        with pytest.raises(ConfigError, match=f"takes a number of .*, not {number!r}"):
            split(number)


def test_arguments_of_a_constructor_need_a_class() -> None:
    for given in ({"fn_constructor_args": [1]}, {"fn_constructor_kwargs": {"a": 1}}):
        with pytest.raises(ConfigError, match=r"map\(<lambda>\) is not a class.*fn_args="):
            ROWS.map(lambda row: row, **given)


def test_batches_without_a_format_are_tables() -> None:
    assert isinstance(ROWS.take_batch(2, batch_format=None), pa.Table)
    assert isinstance(next(iter(ROWS.iter_batches(batch_format=None))), pa.Table)
    kinds = ROWS.map_batches(lambda batch: {"kind": [type(batch).__name__]}, batch_format=None)
    assert kinds.take(1) == [{"kind": "Table"}]


@pytest.mark.parametrize("value", ["abc", {"a": 1, "b": 2}, {1, 2}, 5, None, np.float32(2)])
def test_a_column_has_a_value_for_each_row(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"must have one value for each row, not a single value: "
    ):
        ROWS.map_batches(lambda batch: {"x": value}).take()


@pytest.mark.parametrize("size", [{"size": 0}, {"min_size": 0}, {"min_size": 8, "max_size": 4}])
def test_a_pool_has_a_worker_or_more(size: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="a number of workers"):
        ROWS.map(dict, compute=dray.data.ActorPoolStrategy(**size))
    with pytest.raises(ConfigError, match=r"compute= takes ActorPoolStrategy.*not 'actors'"):
        ROWS.map(dict, compute="actors")


@pytest.mark.parametrize(
    "call",
    [
        lambda: ROWS.select_columns(None),
        lambda: ROWS.drop_columns(1),
        lambda: ROWS.rename_columns({"id": 1}),
        lambda: ROWS.rename_columns([1]),
        lambda: ROWS.rename_columns(1),
        lambda: ROWS.sort([]),
    ],
)
def test_columns_are_given_by_their_names(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="takes columns by their names, not"):
        call()


def test_options_of_other_libraries_say_what_to_use(tmp_path: Path) -> None:
    ROWS.write_json(tmp_path, orient="records", lines=True)
    assert data.read_json(tmp_path).count() == 8
    with pytest.raises(AbsentArgumentError, match="write the batches of iter_batches"):
        ROWS.write_json(tmp_path, orient="split")
    with pytest.raises(AbsentArgumentError, match="give the options themselves"):
        ROWS.map(dict, ray_remote_args_fn=dict)
    with pytest.raises(AbsentArgumentError, match=r"call filter\(expr=...\) of the dataset"):
        data.read_parquet(tmp_path, filter=col("id") > 1)


@pytest.mark.parametrize(
    ("of", "name", "instead"),
    [
        (ROWS, "get_stats_summary", "stats()"),
        (ROWS.iterator(), "to_pandas", "on the dataset that materialize() returns"),
        (ROWS.iterator(), "iter_epochs", "each iteration over it is an epoch"),
    ],
)
def test_public_names_of_ray_that_are_not_there_say_what_to_use(
    of: object, name: str, instead: str
) -> None:
    with pytest.raises(AbsentNameError) as absent:
        getattr(of, name)
    assert instead in str(absent.value)
    assert "internal" not in str(absent.value)
    assert "did you mean" not in str(absent.value)
