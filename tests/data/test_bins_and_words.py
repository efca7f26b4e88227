"""Preprocessors that put numbers into bins, and count words: as Ray Data's do."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dray.data
from dray.data.preprocessors import (
    CountVectorizer,
    CustomKBinsDiscretizer,
    FeatureHasher,
    HashingVectorizer,
    Preprocessor,
    UniformKBinsDiscretizer,
)
from dray.errors import ConfigError, DataFunctionError

FRAME = pd.DataFrame(
    {"a": [0.2, 1.4, 2.5, 6.2, 9.7, 2.1], "b": [10, 15, 13, 12, 23, 25], "c": [5] * 6}
)
ROWS = dray.data.from_pandas(FRAME)
TEXTS = dray.data.from_items([{"text": text} for text in ("a b a", None, "b c  d")])


def test_bins_of_ones_own() -> None:
    numbers = CustomKBinsDiscretizer(["a", "b"], [0, 1, 4, 10, 25]).transform(ROWS).to_pandas()
    assert numbers["a"].tolist() == [0, 1, 1, 2, 2, 1]
    assert numbers["b"].tolist() == [2, 3, 3, 3, 3, 3]
    edges = {"a": [0, 1, 4], "b": [10, 15, 25]}
    expected: list[tuple[dict[str, Any], list[int | None], list[int | None]]] = [
        ({}, [0, 1, 1, None, None, 1], [None, 0, 0, 0, 1, 1]),
        ({"include_lowest": True}, [0, 1, 1, None, None, 1], [0, 0, 0, 0, 1, 1]),
        ({"right": False}, [0, 1, 1, None, None, 1], [0, 1, 0, 0, 1, None]),
    ]
    for options, a, b in expected:
        made = CustomKBinsDiscretizer(["a", "b"], edges, output_columns=["x", "y"], **options)
        rows = made.transform(ROWS).take_all()
        assert ([row["x"] for row in rows], [row["y"] for row in rows]) == (a, b), options
        assert [row["a"] for row in rows] == FRAME["a"].tolist()
    sizes = pd.CategoricalDtype(["small", "large"], ordered=True)
    named = CustomKBinsDiscretizer(["a"], [0, 2, 10], dtypes={"a": sizes}).transform_batch(FRAME)
    assert named["a"].tolist() == ["small", "small", "large", "large", "large", "large"]
    between = pd.IntervalIndex.from_tuples([(0, 1), (2, 3)])
    found = CustomKBinsDiscretizer(["a"], between, dtypes={"b": np.int64}).transform(ROWS)
    assert [row["a"] for row in found.take_all()] == [0, None, 1, None, None, 1]
    twice = CustomKBinsDiscretizer(["a"], [0, 1, 1, 10], duplicates="drop").transform(ROWS)
    assert [row["a"] for row in twice.take(2)] == [0, 1]
    for wrong, said in (
        (CustomKBinsDiscretizer(["a"], [0, 1, 1, 10]), "has the same edge of bins twice"),
        (CustomKBinsDiscretizer(["a"], [1, 0]), "edges of bins must increase"),
        (CustomKBinsDiscretizer(["a"], [0, 1], dtypes={"a": sizes}), "1 bins, .* 2 categories"),
    ):
        with pytest.raises(ConfigError, match=said):
            wrong.transform(ROWS).take_all()
    with pytest.raises(ConfigError, match="bins has no entry for column 'b'"):
        CustomKBinsDiscretizer(["a", "b"], {"a": [0, 1]})
    with pytest.raises(ConfigError, match="duplicates must be 'raise' or 'drop'"):
        CustomKBinsDiscretizer(["a"], [0, 1], duplicates="keep")


def test_bins_of_one_width() -> None:
    uniform = UniformKBinsDiscretizer(["a", "b", "c"], 4)
    made = uniform.fit_transform(ROWS).to_pandas()
    assert made["a"].tolist() == [0, 0, 0, 2, 3, 0]
    assert made["b"].tolist() == [0, 1, 0, 0, 3, 3]
    assert made["c"].tolist() == [1] * 6
    assert uniform.stats_["a"].tolist() == pytest.approx([0.1905, 2.575, 4.95, 7.325, 9.7])
    by_column = UniformKBinsDiscretizer(["a", "b"], {"a": 4, "b": 3}, right=False).fit(ROWS)
    assert by_column.stats_["b"].tolist() == pytest.approx([10, 15, 20, 25.015])
    copy = Preprocessor.deserialize(by_column.serialize())
    further = copy.transform_batch(pd.DataFrame({"a": [None, 99.0], "b": [15, 9]}))
    assert [further["a"].isna().tolist(), further["b"].isna().tolist()] == [
        [True] * 2,
        [False, True],
    ]
    prices = dray.data.from_items([{"a": Decimal("1.5")}, {"a": Decimal("2.5")}])
    assert UniformKBinsDiscretizer(["a"], 2).fit_transform(prices).take_all() == [
        {"a": 0},
        {"a": 1},
    ]
    for rows, said in (
        (dray.data.from_items([{"a": None}]), "has no values to learn bins from"),
        (ROWS.limit(0), "has no values to learn bins from"),
        (dray.data.from_items([{"a": float("inf")}, {"a": 1.0}]), "infinite values"),
    ):
        with pytest.raises(ConfigError, match=f"column 'a' .*{said}|column 'a' {said}"):
            UniformKBinsDiscretizer(["a"], 2).fit(rows)
    with pytest.raises(ConfigError, match="bins must be a number, 1 or more, not 0"):
        UniformKBinsDiscretizer(["a"], 0)


def test_numbers_of_words() -> None:
    counts = CountVectorizer(["text"]).fit(TEXTS)
    assert list(counts.stats_["token_counts(text)"].items()) == [
        ("a", 2),
        ("b", 2),
        ("c", 1),
        ("", 1),
        ("d", 1),
    ]
    assert [row["text"] for row in counts.transform(TEXTS).take_all()] == [
        [2, 1, 0, 0, 0],
        None,
        [0, 1, 1, 1, 1],
    ]
    few = CountVectorizer(["text"], str.split, max_features=2, output_columns=["n"])
    batch = few.fit_transform(TEXTS.filter(lambda row: row["text"])).take_batch(2)
    assert (batch["n"].tolist(), batch["text"].tolist()) == ([[2, 1], [0, 1]], ["a b a", "b c  d"])
    none = CountVectorizer(["text"]).fit_transform(dray.data.from_items([{"text": None}] * 2))
    assert none.take_all() == [{"text": None}] * 2
    with pytest.raises(ConfigError, match="max_features must be a number, 1 or more"):
        CountVectorizer(["text"], max_features=0)


def test_places_of_words() -> None:
    hashed = HashingVectorizer(["text"], 4).transform(TEXTS).take_all()
    assert [row["text"] for row in hashed] == [[0, 1, 0, 2], None, [1, 2, 1, 0]]
    numbers = pd.DataFrame({"I": [1, 1], "like": [1, 0], "dislike": [0, 1], "Python": [1, 1]})
    hasher = FeatureHasher(list(numbers), 8, "hashed")
    assert hasher.transform_batch(numbers)["hashed"].tolist()[0].tolist() == [
        0,
        0,
        0,
        1,
        1,
        0,
        0,
        1,
    ]
    assert (hasher.get_input_columns(), hasher.get_output_columns()) == (list(numbers), ["hashed"])
    missing = pd.DataFrame({"n1": [1, 2], "n2": [0.5, None]})
    made = FeatureHasher(["n1", "n2"], 3, "hashed").transform_batch(missing)["hashed"].tolist()
    assert made[0].tolist() == [0.5, 0, 1]
    assert np.isnan(made[1]).tolist() == [True, False, False]
    for call in (lambda: HashingVectorizer(["a"], 0), lambda: FeatureHasher(["a"], 1.5, "x")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="num_features must be a number, 1 or more"):
            call()
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        FeatureHasher(["z"], 2, "x").transform(ROWS).take_all()


def test_values_that_do_not_suit_are_told_by_column() -> None:
    numbers = dray.data.from_items([{"x": 1.5, "text": "a"}])
    for made, kind, said in (
        (
            lambda: HashingVectorizer(["x"], 4).transform(numbers).take_all(),
            AttributeError,
            "HashingVectorizer failed on column 'x': AttributeError",
        ),
        (
            lambda: CountVectorizer(["text"], lambda text: [text[9]]).fit(numbers),
            IndexError,
            "CountVectorizer failed on what it learns from: IndexError",
        ),
        (
            lambda: UniformKBinsDiscretizer(["text"], 2).fit(numbers),
            ValueError,
            "UniformKBinsDiscretizer failed on what it learns from: ValueError",
        ),
    ):
        with pytest.raises(kind, match=said) as caught:
            made()
        assert isinstance(caught.value, DataFunctionError)
