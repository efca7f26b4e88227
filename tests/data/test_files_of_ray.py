"""Files as Ray Data has them: columns of tensors, values in names of directories."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.sources.partitions import Partitioning
from dray.errors import ConfigError, StorageError


def test_columns_of_tensors_that_ray_has_written(tmp_path: Path) -> None:
    kind = pa.large_list(pa.uint8())
    told = {
        "ARROW:extension:name": "ray.data.arrow_tensor_v2",
        "ARROW:extension:metadata": "[2, 3]",
    }
    schema = pa.schema([pa.field("image", kind, metadata=told), pa.field("label", pa.int64())])
    images: Any = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    lists = pa.array([list(image.ravel()) for image in images], kind)
    pq.write_table(pa.table([lists, pa.array(range(4))], schema=schema), tmp_path / "a.parquet")
    rows = dray.data.read_parquet(tmp_path)
    first = rows.take(1)[0]
    assert first["image"].tolist() == images[0].tolist()
    batch = rows.map(lambda row: {**row, "image": row["image"] / 255}).take_batch(4)
    assert batch["image"].shape == (4, 2, 3)
    shuffled = rows.random_shuffle(seed=0).select_columns(["image"]).take_batch(4)
    assert sorted(shuffled["image"][:, 0, 0]) == [0, 6, 12, 18]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ray.data.arrow_tensor_v2", "[1180591620717411303424]"),
        ("ray.data.arrow_tensor_v2", "[" * 100_000),
        (b"\xff\xfe", ""),
    ],
    ids=["large", "deep", "unnamed"],
)
def test_columns_whose_extension_makes_no_sense_stay_as_they_are(
    name: Any, told: str, tmp_path: Path
) -> None:
    metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": told}
    schema = pa.schema([pa.field("x", pa.list_(pa.float32()), metadata=metadata)])
    pq.write_table(pa.table([[[1.0, 2.0]]], schema=schema), tmp_path / "a.parquet")
    assert dray.data.read_parquet(tmp_path).take() == [{"x": [1.0, 2.0]}]


def test_values_in_the_names_of_directories(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        folder = tmp_path / f"kind={kind}" / "n=3"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1, 2]}), folder / "a.parquet")
        (folder / "a.csv").write_text("x\n5\n")
        (tmp_path / "plain" / kind).mkdir(parents=True)
        (tmp_path / "plain" / kind / "a.log").write_text(kind)
        (tmp_path / "plain" / kind / "b.txt").write_text("not this")
    rows = dray.data.read_parquet(tmp_path, columns=["x", "kind"])
    assert rows.take_all()[1:3] == [{"x": 2, "kind": "cat"}, {"x": 1, "kind": "dog"}]
    assert rows.schema() is not None
    assert rows.columns() == ["x", "kind"]
    assert rows.random_shuffle(seed=1).filter(lambda row: row["kind"] == "dog").count() == 2
    typed = Partitioning("hive", field_types={"n": int})
    unset: dict[str, Any] = {"include_paths": True, "ignore_missing_paths": False}
    of_csv = dray.data.read_csv(tmp_path, partitioning=typed, **unset).take(1)
    assert of_csv == [
        {"x": 5, "kind": "cat", "n": 3, "path": str(folder.parent.parent / "kind=cat/n=3/a.csv")}
    ]
    assert dray.data.read_parquet(tmp_path, partitioning=None).columns() == ["x"]
    named = Partitioning("dir", field_names=["label"], base_dir=tmp_path / "plain")
    options: dict[str, Any] = {"partitioning": named, "file_extensions": ["log"]}
    assert dray.data.read_text(tmp_path / "plain", **options).take_all() == [
        {"text": "cat", "label": "cat"},
        {"text": "dog", "label": "dog"},
    ]
    assert [
        row["label"] for row in dray.data.read_binary_files(tmp_path / "plain", **options).take()
    ] == ["cat", "dog"]
    with pytest.raises(ConfigError, match="is in 2 directories below base_dir"):
        dray.data.read_parquet(tmp_path, partitioning=Partitioning("dir", str(tmp_path), ["kind"]))
    with pytest.raises(ConfigError, match="style must be"):
        Partitioning("hiv")
    assert importlib.import_module("dray.data.datasource").Partitioning is Partitioning


def test_tensors_of_several_shapes_that_ray_has_written(tmp_path: Path) -> None:
    data = pa.array([[0, 1, 2, 3, 4, 5], [6, 7]], pa.large_list(pa.uint8()))
    lists = pa.StructArray.from_arrays([data, pa.array([[2, 3], [1, 2]])], ["data", "shape"])
    told = {
        "ARROW:extension:name": "ray.data.arrow_variable_shaped_tensor",
        "ARROW:extension:metadata": "2",
    }
    schema = pa.schema([pa.field("image", lists.type, metadata=told)])
    pq.write_table(pa.table([lists], schema=schema), tmp_path / "a.parquet")
    rows = dray.data.read_parquet(tmp_path)
    assert [row["image"].tolist() for row in rows.take_all()] == [[[0, 1, 2], [3, 4, 5]], [[6, 7]]]
    lists = pa.StructArray.from_arrays([data, pa.array([[2, 5], [1, 2]])], ["data", "shape"])
    pq.write_table(pa.table([lists], schema=schema), tmp_path / "a.parquet")
    with pytest.raises(StorageError, match=r"a\.parquet.*column 'image': cannot reshape"):
        dray.data.read_parquet(tmp_path).take_all()
