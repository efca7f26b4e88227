"""Metrics as JSON that any tool reads and dray reads back exactly.

A metric is a Python or numpy scalar, None, a string, or a dict, list or tuple of metrics. A value
that plain JSON cannot represent (NaN, infinities, numpy types, tuples, keys that are not strings)
is written in its nearest plain form, and its type beside it under a JSON pointer (RFC 6901):

    {"metrics": {"loss": null, "acc": 0.5}, "types": {"/loss": "nan", "/acc": "float32"}}
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any

from dray.errors import ConfigError, shown

_PLAIN = (str, bool, int, type(None))
_SCALARS, _STRINGS = frozenset((float, *_PLAIN)), frozenset((str,))
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_DEEPEST = 100
# Kinds of numpy's types, of which those of many bytes are left out.
_NUMBERS = "biuf"
# Python writes and reads at least 640 digits, whatever its limit; most have no need to be asked.
_LONGEST_INT_BITS = 2000
# Beside a key's pointer: what it was. No pointer holds it, since in these "~" comes as "~0".
_KEY = "~key"
_SURROGATES = re.compile("[\ud800-\udfff]")

# No check for circles: `encode` refuses values that are nested deeply before.
_STYLE: dict[str, Any] = {"allow_nan": False, "check_circular": False, "separators": (",", ":")}


def _encoder(*, ensure_ascii: bool) -> Callable[[Mapping[str, Any], int], Iterable[str]]:
    """Return what `JSONEncoder.iterencode` makes anew each time: the parts of an object."""
    plain = json.JSONEncoder(ensure_ascii=ensure_ascii, **_STYLE)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # not CPython
        return lambda record, _: plain.iterencode(record)
    escape = encode_basestring_ascii if ensure_ascii else encode_basestring
    parts_of: Callable[[Mapping[str, Any], int], Iterable[str]]
    parts_of = make(None, plain.default, escape, None, ":", ",", False, False, False)
    return parts_of


_parts_of = _encoder(ensure_ascii=False)
_ascii_parts_of = _encoder(ensure_ascii=True)


def json_bytes(record: Mapping[str, Any]) -> bytes:
    """Return a record as JSON in UTF-8."""
    text = "".join(_parts_of(record, 0))
    if not text.isascii() and _SURROGATES.search(text):  # as in names of files that are not UTF-8
        text = "".join(_ascii_parts_of(record, 0))
    return text.encode()


def encode_plain(metrics: Mapping[str, Any]) -> bytes | None:
    """Return metrics as JSON if plain JSON says all of them, as it mostly does; else None.

    It costs a fraction of `encode`, after work that has filled the caches all the more.
    """
    if (
        type(metrics) is not dict
        or not _SCALARS.issuperset(map(type, metrics.values()))
        or not _STRINGS.issuperset(map(type, metrics))
    ):
        return None
    try:
        return "".join(_parts_of(metrics, 0)).encode()
    except ValueError:  # NaN, infinities, integers of too many digits, text that is not UTF-8
        return None


def encode(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"metrics": plain}`, with `"types"` where the plain form is not the whole truth.

    Raises:
        ConfigError: `metrics` is no dict, or holds something that is no metric.
    """
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            f"metrics must be a dict, such as {{'loss': 0.5}}, not {type(metrics).__name__}: "
            f"{shown(metrics)}"
        )
    types: dict[str, str] = {}
    plain = _encode_dict(metrics, "", types)
    return {"metrics": plain, "types": types} if types else {"metrics": plain}


def decode(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics as they were given to `encode`.

    Raises:
        ValueError: `record` is not as `encode` makes one.
    """
    try:
        types = record.get("types")
        metrics = record["metrics"]
        decoded = _decode(metrics, "", types) if types else metrics
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"metrics: {type(error).__name__}: {error}") from error
    if not isinstance(decoded, dict):
        raise ValueError("metrics are not a JSON object")
    return decoded


def decode_all(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of several records together; the later ones win."""
    return {name: value for record in records for name, value in decode(record).items()}


def _child(path: str, key: object) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _dotted(path: str) -> str:
    """Return where a metric is, for a message."""
    dotted = path.removeprefix("/").replace("/", ".")
    return repr(dotted if len(dotted) <= 80 else f"{dotted[:77]}...")


def _encode_dict(value: Mapping[Any, Any], path: str, types: dict[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) is not str:
            key = _encode_key(key, value, path, types)
        kind = type(item)
        if kind is float:
            as_it_is = math.isfinite(item)
        elif kind is int:
            as_it_is = item.bit_length() <= _LONGEST_INT_BITS
        else:
            as_it_is = kind in _PLAIN
        if as_it_is:
            plain[key] = item
        else:
            plain[key] = _encode(item, _child(path, key), types)
    return plain


def _encode_key(key: object, value: Mapping[Any, Any], path: str, types: dict[str, str]) -> str:
    if isinstance(key, str):  # such as an enum of strings
        return str.__str__(key)
    where = f"the metric {_dotted(path)}" if path else "metrics"
    if type(key) is not int:
        raise ConfigError(f"{where} has the key {shown(key)}; keys must be strings or integers")
    text = _digits(key, path)
    if text in value:
        raise ConfigError(f"{where} has both {text} and {text!r} as keys")
    types[_child(path, text) + _KEY] = "int"
    return text


def _digits(value: int, path: str) -> str:
    try:
        return str(value)
    except ValueError:
        raise ConfigError(
            f"the metric {_dotted(path)} is, or has as a key, an integer with too many digits to "
            "be written and read; report its logarithm, or a string"
        ) from None


def _encode(value: Any, path: str, types: dict[str, str]) -> Any:
    kind = type(value)
    if kind is int:
        if value.bit_length() > _LONGEST_INT_BITS:
            _digits(value, path)
        return value
    if kind in _PLAIN:
        return value
    if kind is float:
        if math.isfinite(value):
            return value
        types[path] = str(value)
        return None
    if isinstance(value, Mapping | list | tuple):
        if path.count("/") > _DEEPEST:
            raise ConfigError(
                f"the metric {_dotted(path)} is nested in more than {_DEEPEST} dicts and lists; "
                "perhaps it holds itself"
            )
        if isinstance(value, Mapping):
            return _encode_dict(value, path, types)
        if isinstance(value, tuple):
            types[path] = "tuple"
        return [_encode(item, _child(path, index), types) for index, item in enumerate(value)]
    return _encode_other(value, path, types)


def _encode_other(value: Any, path: str, types: dict[str, str]) -> Any:
    numpy = sys.modules.get("numpy")  # a numpy scalar exists only where numpy is imported
    if numpy is not None and isinstance(value, numpy.generic):
        if value.dtype.kind in _NUMBERS and value.dtype.itemsize <= 8:
            item = value.item()
            types[path] = value.dtype.name
            if isinstance(item, float) and not math.isfinite(item):
                types[path] += f":{item}"
                return None
            return item
        if value.dtype.kind == "U":
            return str(value)
    for base in (int, float, str):  # subclasses, such as enums of int, whatever they override
        if isinstance(value, base):
            plain = getattr(base, f"__{base.__name__}__")(value)
            return _encode(plain, path, types)
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    advice = "Report its value: .item() for one number, .tolist() for a few"
    if name.startswith("torch"):
        advice = "Report a number: .item(); save tensors in a checkpoint"
    raise ConfigError(
        f"the metric {_dotted(path)} is a {name}, which is not a number, string or None (or a dict "
        f"or list of them). {advice}."
    )


def _decode(value: Any, path: str, types: Mapping[str, str]) -> Any:
    kind = types.get(path)
    if isinstance(value, dict | list) and path.count("/") > _DEEPEST:
        raise ValueError(f"metrics: nested in more than {_DEEPEST} dicts and lists")
    if isinstance(value, dict):
        decoded: dict[Any, Any] = {}
        for key, item in value.items():
            child = _child(path, key)
            is_int = types.get(child + _KEY) == "int"
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
    dtype = numpy.dtype(numpy.sctypeDict[name])
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"{name} is not a type of numbers")
    return dtype.type(plain)
