"""Preprocessors: the same numbers as scikit-learn's, on datasets and on batches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import dray.data
from dray.data.preprocessors import (
    Chain,
    Concatenator,
    LabelEncoder,
    MinMaxScaler,
    OneHotEncoder,
    Preprocessor,
    StandardScaler,
)
from dray.errors import ConfigError

FRAME = pd.DataFrame(
    {"x": [1.0, 2.0, 6.0], "same": [5, 5, 5], "kind": ["b", "a", "b"], "y": [0, 1, 2]}
)
ROWS = dray.data.from_pandas(FRAME)


def test_scalers() -> None:
    scaled = StandardScaler(["x", "same"]).fit_transform(ROWS).to_pandas()
    assert scaled["x"].tolist() == pytest.approx((FRAME.x - 3) / FRAME.x.std(ddof=0))
    assert scaled["same"].tolist() == [0, 0, 0]
    scaler = MinMaxScaler(["x"], output_columns=["part"]).fit(ROWS)
    assert scaler.transform(ROWS).to_pandas()["part"].tolist() == pytest.approx([0, 0.2, 1])
    assert scaler.transform_batch(FRAME)["part"].tolist() == pytest.approx([0, 0.2, 1])
    assert scaler.stats_ == {"min(x)": 1.0, "max(x)": 6.0}


def test_encoders() -> None:
    labels = LabelEncoder("kind").fit(ROWS)
    encoded = labels.transform(ROWS)
    assert encoded.to_pandas()["kind"].tolist() == [1, 0, 1]
    assert labels.inverse_transform(encoded).to_pandas()["kind"].tolist() == ["b", "a", "b"]
    with pytest.raises(ConfigError, match="the value 'c', which was not there"):
        labels.transform_batch({"kind": np.array(["a", "c"])})
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
