"""Metrics come back exactly, are strict JSON for other tools, and refuse what is no metric."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.train.metrics import decode, encode, encode_json

NUMPY = st.one_of(
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.floats(width=16).map(np.float16),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.integers(0, 255).map(np.uint8),
    st.booleans().map(np.bool_),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), NUMPY)
METRICS = st.dictionaries(
    st.text(),
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text(), inner, max_size=4),
            st.dictionaries(st.integers(), inner, max_size=4),
        ),
        max_leaves=12,
    ),
    max_size=6,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float | np.floating) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@given(METRICS)
def test_metrics_come_back_exactly(metrics: dict[str, Any]) -> None:
    assert same(decode(strictly(encode_json(encode(metrics)))), metrics)


def test_plain_metrics_look_plain() -> None:
    assert encode({"loss": 0.5, "epoch": 3}) == {"metrics": {"loss": 0.5, "epoch": 3}}
    assert encode({"a": {"b/c": math.nan}, "x": np.float32(0.5)}) == {
        "metrics": {"a": {"b/c": None}, "x": 0.5},
        "types": {"/a/b~1c": "nan", "/x": "float32"},
    }


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([("a", 1)], "must be a dict, not list"),
        ({"a": {"b": object()}}, r"'a\.b' is a builtins\.object"),
        ({"a": np.zeros(3)}, r"'a' is a numpy\.ndarray.*\.tolist\(\)"),
        ({"a": b"bytes"}, r"builtins\.bytes"),
        ({"a": 1j}, r"builtins\.complex"),
        ({(1, 2): 3}, r"has the key \(1, 2\)"),
        ({1: 2, "1": 3}, "has both 1 and '1' as keys"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(metrics)
