"""Metrics as JSON that any tool reads and dray reads back exactly.

A metric is a Python or numpy scalar, None, a string, or a dict, list or tuple of metrics. What
plain JSON cannot say (NaN, infinities, numpy types, tuples, keys that are not strings) is written
in its nearest plain form, and its type beside it under a JSON pointer (RFC 6901):

    {"metrics": {"loss": null, "acc": 0.5}, "types": {"/loss": "nan", "/acc": "float32"}}
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

from dray.errors import ConfigError

_PLAIN = (str, bool, int, type(None))
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

encode_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `{"metrics": plain}`, with `"types"` where the plain form is not the whole truth.

    Raises:
        ConfigError: `metrics` is no dict, or holds something that is no metric.
    """
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"metrics must be a dict, not {type(metrics).__name__}: {metrics!r}")
    types: dict[str, str] = {}
    plain = _encode_dict(metrics, "", types)
    return {"metrics": plain, "types": types} if types else {"metrics": plain}


def decode(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics as they were given to `encode`."""
    types = record.get("types")
    metrics = record["metrics"]
    decoded = _decode(metrics, "", types) if types else metrics
    assert isinstance(decoded, dict)
    return decoded


def _child(path: str, key: object) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _encode_dict(value: Mapping[Any, Any], path: str, types: dict[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            if type(key) is not int:
                raise ConfigError(
                    f"metrics{path} has the key {key!r}; keys must be strings or integers"
                )
            types[f"{_child(path, key)}#key"] = "int"
            if str(key) in value:
                raise ConfigError(f"metrics{path} has both {key!r} and {str(key)!r} as keys")
            key = str(key)
        kind = type(item)
        if kind in _PLAIN or (kind is float and math.isfinite(item)):
            plain[key] = item
        else:
            plain[key] = _encode(item, _child(path, key), types)
    return plain


def _encode(value: Any, path: str, types: dict[str, str]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        types[path] = str(value)
        return None
    if isinstance(value, Mapping):
        return _encode_dict(value, path, types)
    if isinstance(value, list | tuple):
        if kind is not list:
            types[path] = "tuple"
        return [_encode(item, _child(path, index), types) for index, item in enumerate(value)]
    return _encode_numpy(value, path, types)


def _encode_numpy(value: Any, path: str, types: dict[str, str]) -> Any:
    numpy = sys.modules.get("numpy")  # a numpy scalar exists only where numpy is imported
    if numpy is not None and isinstance(value, numpy.generic):
        if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            item = value.item()
            types[path] = value.dtype.name
            if isinstance(item, float) and not math.isfinite(item):
                types[path] += f":{item}"
                return None
            return item
        if value.dtype.kind == "U":
            return str(value)
    for base in (bool, int, float, str):  # subclasses, such as enums of int
        if isinstance(value, base):
            return _encode(base(value), path, types)
    where = path.removeprefix("/").replace("/", ".")
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    advice = "Report its value: .item() for one number, .tolist() for a few"
    if name.startswith("torch"):
        advice = "Report a number: .item(); save tensors in a checkpoint"
    raise ConfigError(
        f"the metric {where!r} is a {name}, which is not a number, string or None (or a dict or "
        f"list of them). {advice}."
    )


def _decode(value: Any, path: str, types: Mapping[str, str]) -> Any:
    kind = types.get(path)
    if isinstance(value, dict):
        decoded: dict[Any, Any] = {}
        for key, item in value.items():
            child = _child(path, key)
            is_int = types.get(f"{child}#key") == "int"
            decoded[int(key) if is_int else key] = _decode(item, child, types)
        return decoded
    if isinstance(value, list):
        items = [_decode(item, _child(path, index), types) for index, item in enumerate(value)]
        return tuple(items) if kind == "tuple" else items
    if kind is None:
        return value
    if kind in _NON_FINITE:
        return _NON_FINITE[kind]
    name, _, special = kind.partition(":")
    plain = _NON_FINITE[special] if special else value
    try:
        import numpy
    except ImportError:  # written where numpy was, read where it is not
        return plain
    return numpy.dtype(name).type(plain)
