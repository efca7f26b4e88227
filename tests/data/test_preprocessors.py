"""Preprocessors: the same numbers as scikit-learn's, on datasets and on batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dray.data
import dray.data.preprocessors
from dray.data.preprocessors import (
    Categorizer,
    Chain,
    Concatenator,
    FeatureHasher,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    MultiHotEncoder,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    Preprocessor,
    RobustScaler,
    SimpleImputer,
    StandardScaler,
    Tokenizer,
    TorchVisionPreprocessor,
)
from dray.errors import (
    AbsentNameError,
    ConfigError,
    DataFunctionError,
    DeprecatedArgumentError,
)

FRAME = pd.DataFrame(
    {"x": [1.0, 2.0, 6.0], "same": [5, 5, 5], "kind": ["b", "a", "b"], "y": [0, 1, 2]}
)
ROWS = dray.data.from_pandas(FRAME)


def test_scalers() -> None:
    scaled = StandardScaler(["x", "same"]).fit_transform(ROWS).to_pandas()
    assert scaled["x"].tolist() == pytest.approx((FRAME.x - 3) / FRAME.x.std(ddof=0))
    assert scaled["same"].tolist() == [0, 0, 0]
    scaler = MinMaxScaler(["x"], output_columns=["part"]).fit(ROWS)
    changed = scaler.transform(ROWS, batch_size=2, num_cpus=1, concurrency=2)  # Ray's workers
    assert changed.to_pandas()["part"].tolist() == pytest.approx([0, 0.2, 1])
    assert scaler.transform_batch(FRAME)["part"].tolist() == pytest.approx([0, 0.2, 1])
    assert scaler.stats_ == {"min(x)": 1.0, "max(x)": 6.0}


def test_a_scaler_reads_rows_once() -> None:
    read: list[float] = []
    rows = ROWS.map(lambda row: read.append(row["x"]) or row)
    assert StandardScaler(["x", "same"]).fit(rows).stats_["mean(x)"] == 3
    assert read == [1, 2, 6]


@pytest.mark.parametrize("scaler", [StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler])
def test_scalers_without_values_or_rows(scaler: Callable[[list[str]], Preprocessor]) -> None:
    nothing = _of(x=pa.array([None, None], pa.float64()))
    assert scaler(["x"]).fit_transform(nothing).take_all() == [{"x": None}] * 2
    with pytest.raises(ConfigError, match="Scaler has nothing to learn from"):
        scaler(["x"]).fit(nothing.limit(0))


def test_lists_and_numbers_are_put_together() -> None:
    rows = _of(x=pa.array([[1, 2], [3, 4]]), y=pa.array([0.5, 1.5]))
    assert Concatenator(["x", "y"], "z").transform(rows).take_batch()["z"].tolist() == [
        [1.0, 2.0, 0.5],
        [3.0, 4.0, 1.5],
    ]
    uneven = _of(x=pa.array([[1, 2], [3]]), y=pa.array([0.5, 1.5]))
    small = Concatenator(["y", "x"], "z", dtype=np.float32).transform(uneven).take_batch()["z"]
    assert [(each.tolist(), each.dtype) for each in small] == [
        ([0.5, 1.0, 2.0], np.float32),
        ([1.5, 3.0], np.float32),
    ]


def test_encoders() -> None:
    labels = LabelEncoder("kind").fit(ROWS)
    encoded = labels.transform(ROWS)
    assert encoded.to_pandas()["kind"].tolist() == [1, 0, 1]
    assert labels.inverse_transform(encoded).to_pandas()["kind"].tolist() == ["b", "a", "b"]
    unseen = labels.transform(dray.data.from_items([{"kind": "a"}, {"kind": "c"}]))
    assert [row["kind"] for row in unseen.take_all()] == [0, None]
    assert [row["kind"] for row in labels.inverse_transform(unseen).take_all()] == ["a", None]
    numbers = dray.data.from_items([{"kind": number} for number in (1.0, -1, 2, float("nan"))])
    known = labels.inverse_transform(numbers).take_all()
    assert [row["kind"] for row in known] == ["b", None, None, None]
    vectors = OneHotEncoder(["kind"]).fit(ROWS)
    assert vectors.transform(ROWS).take_batch(3)["kind"].tolist() == [[0, 1], [1, 0], [0, 1]]
    assert vectors.transform_batch({"kind": np.array(["c"])})["kind"].tolist() == [[0, 0]]
    few = OneHotEncoder(["kind"], max_categories={"kind": 1}).fit_transform(ROWS)
    assert few.take_batch(3)["kind"].tolist() == [[1], [0], [1]]


def test_a_chain_is_learned_saved_and_done_in_order() -> None:
    chain = Chain(
        StandardScaler(["x"]), OneHotEncoder(["kind"]), Concatenator(["x", "kind"], dtype="float32")
    )
    with pytest.raises(ConfigError, match=r"call fit\(dataset\) of the StandardScaler first"):
        chain.transform(ROWS)
    batch = chain.fit_transform(ROWS).take_batch(3)
    assert batch["concat_out"].shape == (3, 3)
    assert batch["concat_out"].dtype == np.float32
    assert list(batch) == ["same", "y", "concat_out"]
    again = Preprocessor.deserialize(chain.serialize())
    assert (
        again.transform_batch(FRAME.to_dict("series"))["concat_out"] == batch["concat_out"]
    ).all()
    with pytest.raises(ConfigError, match="there is no column 'z'"):
        Concatenator(["z"], raise_if_missing=True).transform(ROWS).take(1)
    with pytest.raises(ConfigError, match="columns must be a list of names"):
        StandardScaler("x")


def test_further_scalers_are_those_of_scikit_learn() -> None:
    sk = pytest.importorskip("sklearn.preprocessing")
    numbers = pd.DataFrame({"x": [1.0, -4.0, 2.5, 7.0], "y": [3.0, 4.0, 0.5, 1.0]})
    rows = dray.data.from_pandas(numbers)
    for ours, theirs in (
        (MaxAbsScaler(["x", "y"]), sk.MaxAbsScaler()),
        (RobustScaler(["x", "y"], (0.1, 0.9)), sk.RobustScaler(quantile_range=(10, 90))),
        (Normalizer(["x", "y"]), sk.Normalizer()),
        (Normalizer(["x", "y"], norm="l1"), sk.Normalizer(norm="l1")),
    ):
        found = ours.fit_transform(rows).to_pandas().to_numpy()
        assert found == pytest.approx(theirs.fit_transform(numbers.to_numpy()))
    stats = pytest.importorskip("scipy.stats")
    raised = PowerTransformer(["x"], power=0.5).transform(rows).to_pandas()["x"]
    assert raised.tolist() == pytest.approx(stats.yeojohnson(numbers["x"], 0.5).tolist())
    raised = PowerTransformer(["y"], power=2, method="box-cox").transform(rows).to_pandas()["y"]
    assert raised.tolist() == pytest.approx(stats.boxcox(numbers["y"], 2).tolist())
    for wrong in (lambda: Normalizer(["x"], norm="l3"), lambda: PowerTransformer(["x"], 1, "y")):
        with pytest.raises(ConfigError, match="must be one of"):
            wrong()


def test_values_are_put_where_there_are_none() -> None:
    gaps = pd.DataFrame({"x": [1.0, None, 3.0], "kind": ["a", "a", None], "n": [1, 2, 3]})
    rows = dray.data.from_pandas(gaps)
    filled = SimpleImputer(["x", "n"]).fit_transform(rows).to_pandas()
    assert filled["x"].tolist() == [1, 2, 3]
    of_nan = dray.data.from_numpy(np.array([1.0, np.nan, 3.0]))
    assert SimpleImputer(["data"]).fit_transform(of_nan).take_batch(3)["data"].tolist() == [1, 2, 3]
    frequent = SimpleImputer(["kind"], "most_frequent", output_columns=["whole"])
    assert frequent.fit_transform(rows).to_pandas()["whole"].tolist() == ["a", "a", "a"]
    constant = SimpleImputer(["kind"], strategy="constant", fill_value="b")
    assert constant.transform(rows).to_pandas()["kind"].tolist() == ["a", "a", "b"]
    for wrong in ("median", "constant"):
        with pytest.raises(ConfigError, match="strategy"):
            SimpleImputer(["x"], strategy=wrong)


def test_categories_lists_words_and_arrays() -> None:
    lists = dray.data.from_items(
        [{"kind": "b", "tags": ["x", "y", "x"]}, {"kind": "a", "tags": ["z"]}]
    )
    known = OrdinalEncoder(["kind", "tags"]).fit(lists)
    assert known.transform(lists).take(1) == [{"kind": 1, "tags": [0, 1, 0]}]
    assert known.transform_batch(pd.DataFrame({"kind": ["c"], "tags": [["y"]]})).isna()["kind"][0]
    late = dray.data.range(9).map(lambda row: {"tags": ["z", "x"] if row["id"] == 8 else None})
    assert OrdinalEncoder(["tags"]).fit_transform(late).take_all()[8] == {"tags": [1, 0]}
    whole = OrdinalEncoder(["tags"], encode_lists=False).fit_transform(lists)
    assert [row["tags"] for row in whole.take()] == [0, 1]
    counted = MultiHotEncoder(["tags"]).fit_transform(lists).take_batch(2)["tags"]
    assert counted.tolist() == [[2, 1, 0], [0, 0, 1]]
    missing = MultiHotEncoder(["tags"]).fit_transform(_of(tags=pa.array([["x"], None])))
    assert missing.take_batch(2)["tags"].tolist() == [[1], [0]]
    alone = MultiHotEncoder(["kind"]).fit_transform(_of(kind=["warm", "hot", None, "warm"]))
    assert alone.take_batch()["kind"].tolist() == [[0, 1], [1, 0], [0, 0], [0, 1]]
    categories = Categorizer(["kind"]).fit_transform(lists).to_pandas()["kind"]
    assert categories.dtype == pd.CategoricalDtype(["a", "b"])
    assert categories.tolist() == ["b", "a"]
    kinds = {"kind": pd.CategoricalDtype(["b", "c"])}
    assert Categorizer(["kind"], kinds).fit_transform(lists).take(2)[1]["kind"] is None
    texts = dray.data.from_items([{"text": "so it is"}])
    assert Tokenizer(["text"]).transform(texts).take(1) == [{"text": ["so", "it", "is"]}]
    arrays = dray.data.from_numpy(np.ones((3, 2, 4)))
    turned = TorchVisionPreprocessor(["data"], lambda array: array.T / 2)
    assert turned.transform(arrays).take_batch(3)["data"].shape == (3, 4, 2)
    together = TorchVisionPreprocessor(["data"], lambda tensor: tensor.sum(-1), batched=True)
    assert together.transform(arrays).take_batch(3)["data"].shape == (3, 2)


def test_batches_keep_what_is_not_changed() -> None:
    scaler = StandardScaler(["x"]).fit(ROWS)
    arrays = [np.ones(2), np.zeros(2)]
    frame = FRAME.iloc[[2, 0]].assign(tags=[["a"], ["b", "c"]], vector=arrays)
    changed = scaler.transform_batch(frame)
    assert changed.index.tolist() == [2, 0]
    assert changed["tags"].tolist() == [["a"], ["b", "c"]]
    assert [vector.tolist() for vector in changed["vector"]] == [[1, 1], [0, 0]]
    words = Tokenizer(["kind"]).transform_batch(FRAME)["kind"]
    assert words.tolist() == [["b"], ["a"], ["b"]]
    assert scaler.transform_batch(pa.table({"x": [3.0]})) == pa.table({"x": [0.0]})


def test_rows_that_have_no_length() -> None:
    rows = _of(x=pa.array([3.0, None, 0.0, float("nan")]), y=pa.array([4, 1, 0, 1]))
    [whole, missing, zeros, nan] = Normalizer(["x", "y"]).transform(rows).take_all()
    assert (whole, missing) == ({"x": 0.6, "y": 0.8}, {"x": None, "y": None})
    assert np.isnan([zeros["x"], zeros["y"], nan["x"], nan["y"]]).all()


def test_preprocessors_say_on_what_they_fail() -> None:
    for wrong in (Normalizer(["x", "kind"]), FeatureHasher(["kind"], 2, "h")):
        with pytest.raises(DataFunctionError, match="failed on column 'kind'"):
            wrong.transform(ROWS).take_all()
    for own in (Shifted(), Chain(Shifted())):
        with pytest.raises(
            DataFunctionError, match="Shifted failed on a block: KeyError: 'x'"
        ) as e:
            own.fit(ROWS).transform_batch({"y": np.arange(2)})
        assert isinstance(e.value, KeyError)
    assert StandardScaler([]).fit_transform(ROWS).count() == 3


def test_preprocessors_are_shown_as_they_were_made() -> None:
    chain = Chain(
        RobustScaler(["x"], (0.1, 0.9)), OneHotEncoder(["kind"], max_categories={"kind": 2})
    )
    assert repr(chain) == (
        "Chain(RobustScaler(columns=['x'], quantile_range=(0.1, 0.9), output_columns=['x']), "
        "OneHotEncoder(columns=['kind'], max_categories={'kind': 2}, output_columns=['kind']))"
    )
    assert repr(LabelEncoder("kind").fit(ROWS)) == (
        "LabelEncoder(label_column='kind', output_column='kind')"
    )
    assert "tokenization_fn=list, " in repr(Tokenizer(["kind"], list))
    assert repr(Shifted()) == "Shifted()"


class Shifted(Preprocessor):
    """Makes numbers begin at 0, as a program's own class does."""

    def _fit(self, dataset: dray.data.Dataset) -> Preprocessor:
        self.stats_ = {"least": dataset.min("x")}
        return self

    def _transform_pandas(self, df: pd.DataFrame) -> pd.DataFrame:
        return df.assign(x=df["x"] - self.stats_["least"])


class Even(Preprocessor):
    """Drops rows, and can do nothing with none of them."""

    _is_fittable = False

    def _transform_numpy(self, batch: dict[str, Any]) -> dict[str, Any]:
        assert len(batch["id"])
        return {"id": batch["id"][batch["id"] % 2 == 0]}


def test_preprocessors_tell_their_state_and_columns() -> None:
    scaler = StandardScaler(["x"], output_columns=["z"])
    status = Preprocessor.FitStatus
    assert (scaler.fit_status(), scaler.has_stats()) == (status.NOT_FITTED, False)
    assert (scaler.columns, scaler.output_columns) == (["x"], ["z"])
    assert (scaler.get_input_columns(), scaler.get_output_columns()) == (["x"], ["z"])
    vectors = Concatenator(["x", "y"])
    assert (vectors.fit(ROWS).fit_status(), vectors.has_stats()) == (status.NOT_FITTABLE, False)
    assert (vectors.get_input_columns(), vectors.get_output_columns()) == (
        ["x", "y"],
        ["concat_out"],
    )
    constant = SimpleImputer(["x"], strategy="constant", fill_value=1.0)
    assert constant.fit_status() == Chain(vectors).fit_status() == "NOT_FITTABLE"
    chain = Chain(scaler, LabelEncoder("kind"))
    assert chain.fit_status() is status.NOT_FITTED
    assert scaler.fit(ROWS).fit_status() is status.FITTED
    assert chain.fit_status() is status.PARTIALLY_FITTED
    assert chain.fit(ROWS).fit_status() is status.FITTED
    assert (scaler.has_stats(), chain.preprocessors[1].get_output_columns()) == (True, ["kind"])


def test_a_class_of_ones_own_and_names_that_are_gone() -> None:
    with pytest.raises(ConfigError, match=r"call fit\(dataset\) of the Shifted first"):
        Shifted().transform(ROWS)
    assert Shifted().fit_transform(ROWS).to_pandas()["x"].tolist() == [0, 1, 5]
    for own in (Even(), Chain(Even(), Even())):
        even = own.transform(dray.data.range(10))
        assert even.count() == len(even.take_all()) == 5
        assert own.transform(dray.data.range(10).filter(lambda row: row["id"] > 9)).count() == 0
    assert Even().transform_batch({"id": np.arange(3)})["id"].tolist() == [0, 2]
    with pytest.raises(AbsentNameError, match="call map_batches"):
        _ = dray.data.preprocessors.BatchMapper  # type: ignore[attr-defined]
    with pytest.raises(DeprecatedArgumentError, match="name the columns to put together"):
        Concatenator(exclude=["y"])  # type: ignore[call-arg]


def _of(**columns: pa.Array) -> dray.data.Dataset:
    return dray.data.from_arrow(pa.table(columns))


def test_small_types_of_numbers_do_not_overflow() -> None:
    bytes_ = _of(x=pa.array([200, 3], pa.uint8()), y=pa.array([150, 4], pa.uint8()))
    assert Normalizer(["x", "y"]).transform(bytes_).take_all() == [
        {"x": 0.8, "y": 0.6},
        {"x": 0.6, "y": 0.8},
    ]
    least = _of(x=pa.array([-128, 64], pa.int8()))
    assert MaxAbsScaler(["x"]).fit_transform(least).take_all() == [{"x": -1.0}, {"x": 0.5}]


def test_encoders_have_no_category_for_nan() -> None:
    nan = float("nan")
    rows = _of(x=pa.array([3.0, nan, 1.0, 2.0]), many=pa.array([[3.0, nan], [1.0], [nan], [2.0]]))
    ordered = OrdinalEncoder(["x", "many"]).fit_transform(rows).take_all()
    assert [row["x"] for row in ordered] == [2, None, 0, 1]
    assert [row["many"] for row in ordered] == [[2, None], [0], [None], [1]]
    labels = [row["x"] for row in LabelEncoder("x").fit_transform(rows).take_all()]
    assert labels == [2, None, 0, 1]
    categories = Categorizer(["x"]).fit_transform(rows).to_pandas()["x"].cat.categories
    assert categories.tolist() == [1.0, 2.0, 3.0]
    hot = MultiHotEncoder(["many"]).fit_transform(OneHotEncoder(["x"]).fit_transform(rows))
    vectors = hot.take_all()
    assert [row["x"].tolist() for row in vectors] == [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert [row["many"].tolist() for row in vectors] == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_nan_is_one_value_whatever_the_block() -> None:
    rows = dray.data.range(3).map_batches(lambda batch: {"x": [float("nan")]}, batch_size=1)
    [value] = rows.unique("x")
    assert np.isnan(value)
