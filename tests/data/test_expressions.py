"""Expressions on columns, in `with_column` and `filter`, and what Ray Data makes of the same."""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dray.data
from dray.data.datatype import DataType
from dray.data.expressions import (
    Expr,
    col,
    download,
    lit,
    monotonically_increasing_id,
    pyarrow_udf,
    random,
    udf,
    unnest,
    uuid,
)
from dray.errors import AbsentError, ConfigError, DataFunctionError

PAIRS = pa.map_(pa.string(), pa.int64())
TABLE = pa.table(
    {
        "x": [1, -7, None, 4],
        "y": [2.5, -1.0, 0.0, None],
        "on": [True, False, None, True],
        "s": ["ab c", "Éé", None, "zab"],
        "kind": pa.array(["a", "b", "a", "b"]).dictionary_encode(),
        "l": [[3, 1], [2, None], None, []],
        "ll": [[[1, 2], [3]], [[4], None], None, []],
        "two": pa.array([[3, 1], [2, 5], None, [0, 9]], pa.list_(pa.int64(), 2)),
        "m": pa.array([[("a", 1)], [("b", 2), ("c", 3)], None, []], PAIRS),
        "u": [{"a": 1, "b": "p"}, {"a": 2, "b": "q"}, None, {"a": None, "b": "r"}],
        "t": pa.array(
            [
                datetime.datetime(2024, 5, 17, 13, 45, 59),
                None,
                datetime.datetime(1969, 12, 31, 23, 0, 1),
                datetime.datetime(2000, 1, 1),
            ]
        ),
    }
)

# Python text of expressions -> their values in TABLE.
VALUES: dict[str, list[Any]] = {
    "col('x') + 1": [2, -6, None, 5],
    "2 - col('x')": [1, 9, None, -2],
    "col('x') / 2": [0, -3, None, 2],
    "7 // col('x')": [7.0, -1.0, None, 1.0],
    "col('x') % 3": [1.0, -1.0, None, 1.0],
    "col('y') % 2": [0.5, 1.0, 0.0, None],
    "'!' + col('s') + col('kind')": ["!ab ca", "!Ééb", None, "!zabb"],
    "(col('x') > 0) & ~col('on')": [False, False, None, False],
    "(1 < col('x')) | col('on')": [True, False, None, True],
    "col('x').is_null()": [False, False, True, False],
    "col('x').not_in(values=[1, None])": [False, True, False, True],
    "col('kind').is_in(['a'])": [True, False, True, False],
    "(col('y') * 3).round().cast(DataType.int64())": [8, -3, 0, None],
    "col('y').abs().power(exponent=2)": [6.25, 1.0, 0.0, None],
    "lit('a').alias('named')": ["a", "a", "a", "a"],
    "lit({'a': 1})": [{"a": 1}] * 4,
    "col('s').str.capitalize().str.repeat(n=2)": ["Ab cAb c", "ÉéÉé", None, "ZabZab"],
    "col('s').str.contains('AB', ignore_case=True)": [True, False, None, True],
    "col('s').str.replace_regex('[ab]', '-')": ["-- c", "Éé", None, "z--"],
    "col('s').str.split(' ').list.len()": [2, 1, None, 1],
    "col('s').str.strip('az')": ["b c", "Éé", None, "b"],
    "col('s').str.pad(5, '*', side='both')": ["ab c*", "*Éé**", None, "*zab*"],
    "col('l').list[0:1]": [[3], [2], None, []],
    "col('l').list.sort('descending', 'at_start')": [[3, 1], [None, 2], None, []],
    "col('two').list[0]": [3, 2, None, 0],
    "col('two').list.get(index=1)": [1, 5, None, 9],
    "col('two').list.sort()": [[1, 3], [2, 5], None, [0, 9]],
    "col('two').arr.to_list().list.len()": [2, 2, None, 2],
    "col('ll').list.flatten()": [[1, 2, 3], [4], None, []],
    "col('m').map.keys()": [["a"], ["b", "c"], None, []],
    "col('m').map.values()": [[1], [2, 3], None, []],
    "col('u').struct.field(field_name='a') + col('x')": [2, -5, None, None],
    "col('u').struct.field_by_index(index=1)": ["p", "q", None, "r"],
    "col('t').dt.strftime(fmt='%Y/%m')": ["2024/05", None, "1969/12", "2000/01"],
    "col('t').dt.floor('day').dt.year()": [2024, None, 1969, 2000],
}


def given(module: Any, datatype: Any) -> dict[str, Any]:
    """Return the expressions of a library by their texts."""
    scope = {"col": module.col, "lit": module.lit, "DataType": datatype}
    return {text: eval(text, scope) for text in VALUES}


def test_every_expression_has_the_values_of_ray_data() -> None:
    rows = dray.data.from_arrow(pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]))
    made = rows.with_columns(given(dray.data.expressions, DataType)).select_columns(list(VALUES))
    assert made.to_arrow().to_pydict() == VALUES


@pytest.mark.ray
def test_ray_data_has_these_values_and_types(session: Any, cluster: Any) -> None:
    import ray.data
    from ray.data import datatype, expressions

    session(engine="ray", address=cluster.address)
    theirs = ray.data.from_arrow(TABLE).with_columns(given(expressions, datatype.DataType))
    blocks = ray.get(theirs.select_columns(list(VALUES)).to_arrow_refs())
    ours = dray.data.from_arrow(TABLE).with_columns(given(dray.data.expressions, DataType))
    table = ours.select_columns(list(VALUES)).to_arrow()
    assert pa.concat_tables(blocks).to_pydict() == table.to_pydict()
    assert blocks[0].schema.remove_metadata() == table.schema


def test_columns_come_at_the_end_or_in_the_place_of_their_namesakes() -> None:
    rows = dray.data.range(3)
    replaced = rows.with_column("b", lit(1)).with_column("id", col("id") + 1)
    assert replaced.take(1) == [{"id": 1, "b": 1}]
    assert replaced.count() == 3
    both = rows.with_columns({"id": col("id") * 10, "b": col("id") + 1}, {"c": col("id")})
    assert both.take_all()[1:] == [{"id": 10, "b": 2, "c": 1}, {"id": 20, "b": 3, "c": 2}]
    fields = dray.data.from_arrow(TABLE.select(["u"])).with_columns(unnest(col("u")))
    assert fields.drop_columns(["u"]).take(3)[1:] == [{"a": 2, "b": "q"}, {"a": None, "b": None}]
    empty = rows.filter(expr=col("id") > 5).with_column("b", lit("a"))
    assert (empty.count(), empty.take_all()) == (0, [])
    grouped = rows.groupby("id").with_column("n", col("id") * 2)
    assert grouped.take_all() == [{"id": 0, "n": 0}, {"id": 1, "n": 2}, {"id": 2, "n": 4}]


def test_texts_of_pandas_are_put_together() -> None:
    table = pa.table({"a": pa.array(["a", None], pa.large_string()), "b": ["x", "y"]})
    rows = dray.data.from_arrow(table).with_columns(
        {"ab": col("a") + col("b"), "ba": "_" + col("b") + col("a"), "a_": col("a") + "_"}
    )
    assert rows.select_columns(["ab", "ba", "a_"]).take(1) == [
        {"ab": "ax", "ba": "_xa", "a_": "a_"}
    ]
    assert rows.take_batch()["ab"][1] is None


def test_rows_are_kept_for_which_a_condition_is_true(tmp_path: Path) -> None:
    pq.write_table(TABLE.select(["x", "s"]), tmp_path / "a.parquet")
    rows = dray.data.read_parquet(tmp_path)
    kept = rows.filter(expr=(col("x") > 0) & ~col("s").str.contains(" "))
    assert kept.map(lambda row: row).filter(expr=col("x").is_in([4])).take_all() == [
        {"x": 4, "s": "zab"}
    ]
    assert rows.filter(expr=col("x") > 0, concurrency=2).count() == 2
    with pytest.raises(ConfigError, match=r"rows 0 to 3 of .*a\.parquet: .*no column 'z'.* x, s"):
        rows.filter(expr=col("z") > 0).take_all()
    with pytest.raises(DataFunctionError, match=r"filter\(add\(col\('x'\), 1\)\) failed on rows"):
        rows.filter(expr=col("x") + 1).take_all()


def test_functions_of_users() -> None:
    @udf(return_dtype=DataType.int64())
    def plus(values: pa.ChunkedArray, by: Any = 1) -> pa.ChunkedArray:
        return pc.add(values, by)

    @udf(return_dtype=DataType.from_numpy(np.float64))
    def half(values: Any) -> Any:
        return np.asarray(values) / 2

    @pyarrow_udf(return_dtype=DataType.list(DataType.string()))
    def texts(values: Any) -> Any:
        return pa.array([str(value) for value in values.to_pylist()])

    @udf(return_dtype=DataType.int64())
    class Offset:
        def __init__(self, by: int = 1) -> None:
            self.by = by

        def __call__(self, values: Any) -> Any:
            return pc.add(values, self.by)

    @udf(return_dtype=DataType(int))
    def single(values: Any) -> int:
        return 3

    rows = dray.data.range(3)

    def last(expr: Expr) -> Any:
        return rows.with_column("made", expr).take_all()[-1]["made"]

    assert last(plus(col("id"), by=col("id")) * 2) == 8
    assert last(plus(5 + col("id"))) == 8
    assert last(half(col("id"))) == 1.0
    assert last(texts(col("id"))) == "2"
    assert last(Offset(5)(col("id"))) == 7
    more = rows.with_column("more", Offset(by=2)(col("id")), concurrency=2)
    assert [row["more"] for row in more.take_all()] == [2, 3, 4]
    with pytest.raises(ConfigError, match=r"with_column\(a\) failed on .*: single must return a"):
        rows.with_column("a", single(col("id"))).take_all()


def test_contents_of_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    paths = [f"{tmp_path}/a", f"file://{tmp_path}/a", f"{tmp_path}/none", None]
    rows = dray.data.from_arrow(pa.table({"path": pa.array(paths)}))
    found = rows.with_column("bytes", download("path")).take_all()
    assert [row["bytes"] for row in found] == [b"one", b"one", None, None]
    on = pa.fs.SubTreeFileSystem(str(tmp_path), pa.fs.LocalFileSystem())
    named = dray.data.from_items([{"path": "a"}])
    whole = named.with_column("bytes", download("path", filesystem=on))
    assert whole.filter(expr=col("bytes") == b"one").count() == 1
    (tmp_path / "a.gz").write_bytes(packed := gzip.compress(b"one"))
    of_packed = dray.data.from_items([{"path": f"{tmp_path}/a.gz"}])
    for filesystem in (None, pa.fs.LocalFileSystem()):
        [row] = of_packed.with_column("bytes", download("path", filesystem=filesystem)).take_all()
        assert row["bytes"] == packed


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: bool(col("x") > 1), r"greater\(col\('x'\), 1\) has a value for each row: write"),
        (lambda: dray.data.range(1).with_column("a", 3), "with_column takes an expression"),  # type: ignore[arg-type]
        (lambda: dray.data.range(1).with_columns(3), "with_columns takes {name: expression}"),  # type: ignore[arg-type]
        (lambda: unnest(3), "unnest takes an expression"),  # type: ignore[arg-type]
        (lambda: col("x").cast(int), "cast takes a type such as DataType.int64"),
        (lambda: col("x").cast(DataType(int)), "int is not an Arrow type"),
        (lambda: dray.data.range(1).filter(expr=3), "expr must be an expression such as col"),
    ],
)
def test_what_is_no_expression_is_refused(what: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        what()


def test_expressions_say_what_they_calculate_and_what_is_not_there() -> None:
    assert repr((col("x") + 1) * lit(2)) == "multiply(add(col('x'), 1), lit(2))"
    assert [expr.name for expr in (col("a"), col("a").alias("b"), col("a") + 1)] == ["a", "b", None]
    with pytest.raises(AbsentError, match=r"has no star: with_column\(\) keeps all other columns"):
        getattr(dray.data.expressions, "star")  # noqa: B009


def test_arrow_arrays_that_a_function_returns() -> None:
    made = dray.data.range(2).map_batches(lambda batch: {"a": pa.array(["p", "q"])})
    assert made.take_all() == [{"a": "p"}, {"a": "q"}]


def test_random_numbers() -> None:
    rows = dray.data.range(1000)

    def drawn(**options: Any) -> list[float]:
        made = rows.with_column("x", random(**options))
        return [row["x"] for row in made.take_all()]

    numbers = drawn()
    assert 0 <= min(numbers) < max(numbers) < 1
    assert 0.4 < float(np.mean(numbers)) < 0.6
    assert numbers != drawn()
    assert drawn(seed=1) == drawn(seed=1)
    assert drawn(seed=1) != drawn(seed=2)
    again = rows.with_column("x", random(seed=1))
    assert again.take_all() != again.take_all()
    same = rows.with_column("x", random(seed=1, reseed_after_execution=False) * 10)
    assert same.take_all() == same.take_all()
    assert 20 < rows.filter(expr=random(seed=3) < 0.05).count() < 90
    objects = rows.limit(3).map(lambda row: {"object": {1, row["id"]}})
    assert objects.with_column("x", random(seed=1)).count() == 3
    with pytest.raises(ConfigError, match="seed must be a whole number"):
        random(seed="x")  # type: ignore[arg-type]
    assert repr(random() + 1) == "add(random(), 1)"


def test_numbers_and_texts_of_a_rows_own() -> None:
    rows = dray.data.range(9).map_batches(lambda batch: batch, batch_size=2)
    made = rows.with_columns({"n": monotonically_increasing_id(), "key": uuid()})
    assert len({row["key"] for row in made.take_all()}) == 9
    assert {len(row["key"]) for row in made.take_all()} == {36}
    numbers = [row["n"] for row in made.take_all()]
    assert numbers == list(range(numbers[0], numbers[0] + 9))
    both = [row["n"] for part in made.split(2) for row in part.take_all()]
    assert len(set(both)) == 9
