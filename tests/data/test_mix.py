"""Datasets in turn, streaming splits for a test, and what a dataset says of its operations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dray.data
from dray.data import Dataset, MixStoppingCondition
from dray.data.expressions import col
from dray.data.preprocessors import StandardScaler
from dray.errors import AbsentArgumentError, ConfigError

data: Any = dray.data
# The rows of range(8) that Ray Data 2.60 chooses by their hashes.
OF_RAY = [1, 7]
SHORTEST = MixStoppingCondition.STOP_ON_SHORTEST


def rows_of(kind: int, rows: int) -> Dataset:
    """Rows in blocks of three, which say whose they are."""
    made = dray.data.range(rows).map_batches(
        lambda batch: {"kind": np.full(len(batch["id"]), kind), "id": batch["id"]}, batch_size=3
    )
    return made


def mixed_kinds(mix: Dataset) -> list[int]:
    rows = mix.take_all()
    for kind in {row["kind"] for row in rows}:
        own = [row["id"] for row in rows if row["kind"] == kind]
        assert own == list(range(len(own)))
    return [row["kind"] for row in rows]


def test_rows_of_several_datasets_in_turn() -> None:
    assert mixed_kinds(rows_of(0, 4).mix(rows_of(1, 6))) == [0, 1] * 4 + [1] * 2
    assert mixed_kinds(rows_of(0, 4).mix(rows_of(1, 9), stopping_condition=SHORTEST)) == [0, 1] * 4
    three = rows_of(0, 9000).mix(rows_of(1, 9000), rows_of(2, 9000), weights=[5, 3, 2])
    kinds = np.array(mixed_kinds(three))
    assert len(kinds) == 27000
    for begin in range(0, 15000, 100):
        assert np.bincount(kinds[begin : begin + 100], minlength=3) == pytest.approx(
            [50, 30, 20], abs=2
        )
    after = np.bincount(kinds[18000:22000], minlength=3)  # the first has no more rows
    assert after[1] / after[2] == pytest.approx(1.5, abs=0.01)
    short = rows_of(0, 9000).mix(rows_of(1, 100), weights=[0.99, 0.01], stopping_condition=SHORTEST)
    assert short.count() == pytest.approx(9090, abs=2)
    assert mixed_kinds(rows_of(0, 3).mix(rows_of(1, 0))) == [0] * 3
    assert mixed_kinds(rows_of(0, 0).mix(rows_of(1, 3), stopping_condition=SHORTEST)) == []
    widened = dray.data.from_items([{"x": 1}]).mix(dray.data.from_items([{"x": 0.5, "y": 2}]))
    assert widened.take_all() == [{"x": 1.0, "y": None}, {"x": 0.5, "y": 2}]
    both = rows_of(0, 10).mix(rows_of(1, 10)).materialize()
    shares = [list(share.iter_rows()) for share in both.streaming_split(2, equal=True)]
    assert [len(share) for share in shares] == [10, 10]


def test_rows_of_streams_in_turn() -> None:
    class Endless:
        """Numbers from 0, without an end."""

        def __iter__(self) -> Iterator[dict[str, int]]:
            return ({"id": number} for number in itertools.count())

    from dray.data.accepted import dataset_of

    mix = dataset_of(Endless(), "train").mix(dray.data.range(3))
    assert [row["id"] for row in mix.take(6)] == [0, 0, 1, 1, 2, 2]
    first, second = mix.streaming_split(2)
    assert [row["id"] for row in itertools.islice(first.iter_rows(), 2)] == [0, 1]
    assert [row["id"] for row in itertools.islice(second.iter_rows(), 2)] == [0, 1]


def test_a_mix_is_asked_for_rightly() -> None:
    for weights in ([1], [1, 0], [1, -1], [1, "x"], [1, 2, 3]):
        with pytest.raises(ConfigError, match="mix takes a weight above 0 for each of the 2"):
            data.range(3).mix(data.range(3), weights=weights)
    with pytest.raises(ConfigError, match=r"one of dray\.data\.MixStoppingCondition, not 'end'"):
        data.range(3).mix(data.range(3), stopping_condition="end")


def test_rows_for_a_test_are_drawn() -> None:
    train, test = dray.data.range(2000).streaming_train_test_split(0.25, seed=3, num_cpus=1)
    ids = [[row["id"] for row in part.take_all()] for part in (train, test)]
    assert sorted(ids[0] + ids[1]) == list(range(2000))
    assert 400 < len(ids[1]) < 600
    assert [row["id"] for row in test.random_shuffle(seed=1).sort("id").take_all()] == ids[1]
    again = dray.data.range(2000).streaming_train_test_split(0.25, seed=3)
    assert again[1].take_all() == test.take_all()
    other = dray.data.range(2000).streaming_train_test_split(0.25)
    assert other[1].count() + other[0].count() == 2000
    assert other[1].take_all() != test.take_all()


def test_rows_for_a_test_are_chosen_by_their_values() -> None:
    train, test = dray.data.range(8).streaming_train_test_split(
        0.25, split_type="hash", hash_column="id"
    )
    assert [row["id"] for row in test.take_all()] == OF_RAY
    assert [row["id"] for row in train.take_all()] == [n for n in range(8) if n not in OF_RAY]
    words = dray.data.from_items([{"word": word} for word in "abcdefgh" * 5])
    parts = words.streaming_train_test_split(0.5, split_type="hash", hash_column="word")
    found = [{row["word"] for row in part.random_shuffle().take_all()} for part in parts]
    assert (found[0] | found[1], found[0] & found[1]) == (set("abcdefgh"), set())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"test_size": 1}, "test_size must be above 0 and below 1, not 1"),
        ({"split_type": "time"}, "split_type must be 'random' or 'hash'"),
        ({"hash_column": "id"}, "hash_column is only for split_type='hash'"),
        ({"split_type": "hash"}, "hash_column is only for split_type='hash'"),
        ({"split_type": "hash", "hash_column": "id", "seed": 1}, "seed has no effect"),
    ]
    for options, said in wrong:
        with pytest.raises(ConfigError, match=said):
            data.range(3).streaming_train_test_split(**{"test_size": 0.5, **options})
    with pytest.raises(AbsentArgumentError, match="has no argument 'stratify'"):
        data.range(3).streaming_train_test_split(0.5, stratify="id")
    missing = data.range(3).streaming_train_test_split(0.5, split_type="hash", hash_column="z")
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        missing[0].take_all()


def test_a_dataset_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    def double(batch: Any) -> Any:
        return batch

    rows = dray.data.from_items([{"x": 1.0, "y": 2}, {"x": 2.0, "y": 3}])
    scaled = StandardScaler(["x"]).fit_transform(rows)
    made = scaled.map_batches(double, concurrency=(1, 2)).with_column("z", col("x") + 1)
    made.filter(expr="x > 0").select_columns(["x"]).random_shuffle(seed=3).explain()
    assert capsys.readouterr().out.splitlines() == [
        "select_columns(['x'])",
        "+- filter(greater(col('x'), lit(0)))",
        "   +- with_column(z)",
        "      +- map_batches(double), in 1 to 2 actors",
        "         +- StandardScaler",
        "            +- random_shuffle(seed=3)",
        "               +- the items",
    ]
    rows.drop_columns(["x"]).rename_columns({"y": "z"}).sort("z").explain()
    assert capsys.readouterr().out == "sorted rows\n"
