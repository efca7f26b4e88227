"""Metrics come back exactly, are strict JSON for other tools, and refuse what is no metric."""

from __future__ import annotations

import json
import math
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dray.errors import ConfigError
from dray.train.storage.metrics_codec import decode, encode, encode_plain, json_bytes

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


# Names that look like what stands beside names, and strings that are not UTF-8.
TRICKY = st.one_of(
    st.sampled_from(["1", "1#key", "1~key", "~1", "/", "a/b", "", "types", "crc32"]),
    st.text(st.characters(), max_size=3),
)


@given(
    st.dictionaries(
        st.one_of(TRICKY, st.integers(-2, 2).map(lambda n: n * 10)),
        st.recursive(
            st.one_of(SCALARS, TRICKY, st.integers(-(10**600), 10**600)),
            lambda inner: st.dictionaries(TRICKY, inner, max_size=3),
            max_leaves=4,
        ),
        max_size=5,
    )
)
def test_what_names_look_like_does_not_matter(metrics: dict[Any, Any]) -> None:
    assume(len({str(key) for key in metrics}) == len(metrics))
    assert same(decode(strictly(json_bytes(encode(metrics)).decode())), metrics)


@given(METRICS)
def test_metrics_come_back_exactly(metrics: dict[str, Any]) -> None:
    assert same(decode(strictly(json_bytes(encode(metrics)).decode())), metrics)


@given(st.dictionaries(st.one_of(st.text(), st.integers(0, 2)), SCALARS, max_size=4))
def test_the_short_way_says_the_same_or_leaves_it_to_the_long_one(metrics: dict[Any, Any]) -> None:
    plain = encode_plain(metrics)
    if plain is not None:
        assert plain == json_bytes(encode(metrics)["metrics"])
        assert same(strictly(plain.decode()), metrics)


def test_the_short_way_takes_what_most_reports_are() -> None:
    metrics = {"loss": 0.5, "epoch": 3, "name": "Größe", "best": True, "none": None}
    assert encode_plain(metrics) == json_bytes(metrics)
    nan, half, surrogate = {"loss": math.nan}, {"loss": np.float64(0.5)}, {"a": "\ud800"}
    others: tuple[dict[Any, Any], ...] = (nan, half, surrogate, {1: 2}, {"a": [1]})
    for other in others:
        assert encode_plain(other) is None


def test_plain_metrics_look_plain() -> None:
    assert encode({"loss": 0.5, "epoch": 3}) == {"metrics": {"loss": 0.5, "epoch": 3}}
    assert encode({"a": {"b/c": math.nan}, "x": np.float32(0.5)}) == {
        "metrics": {"a": {"b/c": None}, "x": 0.5},
        "types": {"/a/b~1c": "nan", "/x": "float32"},
    }


class Silent:
    """Says nothing about itself."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Own(str):
    """A string that would rather not be one."""

    def __str__(self) -> str:
        raise RuntimeError("no str")


class Level(int, Enum):
    HIGH = 3

    def __int__(self) -> int:
        raise RuntimeError("no int")


def test_subclasses_of_plain_values_are_those_values() -> None:
    metrics = {Own("key"): Own("value"), "level": Level.HIGH, "list": type("L", (list,), {})([1])}
    assert decode(encode(metrics)) == {"key": "value", "level": 3, "list": [1]}


CYCLIC: dict[str, Any] = {}
CYCLIC["self"] = CYCLIC
CYCLIC_LIST: list[Any] = []
CYCLIC_LIST.append(CYCLIC_LIST)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([("a", 1)], "must be a dict, .*not list"),
        ({"a": {"b": object()}}, r"'a\.b' is a builtins\.object"),
        ({"a": np.zeros(3)}, r"'a' is a numpy\.ndarray.*\.tolist\(\)"),
        ({"a": b"bytes"}, r"builtins\.bytes"),
        ({"a": 1j}, r"builtins\.complex"),
        ({(1, 2): 3}, r"has the key \(1, 2\)"),
        ({1: 2, "1": 3}, "has both 1 and '1' as keys"),
        ({"a": {Silent(): 1}}, r"the metric 'a' has the key <Silent, its repr\(\) failed>"),
        ({"a": Silent()}, r"'a' is a tests\.train\.storage\.test_metrics_codec\.Silent"),
        (Silent(), r"must be a dict, .*not Silent: <Silent, its repr\(\) failed>"),
        ({"a": 10**5000}, "'a' is, or has as a key, an integer with too many digits"),
        ({10**5000: 1}, "an integer with too many digits"),
        (CYCLIC, r"'self\.self\..*\.\.\.' is nested in more than 100 .* perhaps it holds itself"),
        ({"a": CYCLIC_LIST}, "perhaps it holds itself"),
        ({"a": {1, 2}}, r"builtins\.set"),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(metrics)
