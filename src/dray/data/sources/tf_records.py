"""Files of TFRecord with messages of `tf.train.Example`, without TensorFlow and protobuf.

A file is a run of records: a length, its checksum, that many bytes, their checksum. Such a message
is a map from names to features, each a list of bytes, of floats or of integers.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dray.data.forms.blocks import Array, Table, Value
from dray.data.forms.lists import is_list, lists_of_one
from dray.data.sources.base import BLOCK_BYTES, BlocksSource, Filesystem
from dray.data.sources.files import by_file
from dray.data.sources.finding import naming
from dray.data.sources.partitions import Labels
from dray.data.sources.writing import Writer
from dray.errors import ConfigError

# A kind of a feature's list, as its number in the message says, and the values.
Feature: TypeAlias = tuple[int, Sequence[Value]]
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_TYPES = {0: pa.null(), _BYTES: pa.binary(), _FLOATS: pa.float32(), _INTEGERS: pa.int64()}
# Fields of a message: their wire types.
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_RECORDS = 4096


def tf_records_source(
    files: Sequence[str],
    filesystem: Filesystem,
    label: Callable[[str], Labels],
    opening: Mapping[str, object],
) -> BlocksSource:
    """Return files of TFRecord as a source, with a row for each message."""

    def parts(path: str) -> Iterator[Table]:
        with naming(path), filesystem.open_input_stream(path, **opening) as file:
            held: list[dict[str, Feature]] = []
            size = 0
            for record in _records(file):
                held.append(_features(record))
                size += len(record)
                if size >= BLOCK_BYTES or len(held) >= _RECORDS:
                    yield _table(held)
                    held, size = [], 0
            if held:
                yield _table(held)

    return by_file(files, parts, label)


def _records(file: pa.NativeFile) -> Iterator[bytes]:
    while head := file.read(12):
        if len(head) < 12 or head[8:] != _checksum(head[:8]):
            raise ValueError("it is no file of TFRecord, or damaged")
        (length,) = struct.unpack("<Q", head[:8])
        record: bytes = file.read(length)
        if len(record) < length or len(file.read(4)) < 4:
            raise ValueError("its last record is not complete")
        yield record


def _features(record: bytes) -> dict[str, Feature]:
    """Return the features of a message by their names."""
    found: dict[str, Feature] = {}
    for _, features in _fields(record):
        for _, entry in _fields(features):
            pair = dict(_fields(entry))
            found[pair[1].decode()] = _feature(pair.get(2, b""))
    return found


def _feature(content: bytes) -> Feature:
    for kind, listed in _fields(content):
        values = [value for _, value in _fields(listed)]
        if kind == _BYTES:
            return kind, values
        if kind == _FLOATS:
            return kind, np.frombuffer(b"".join(values), "<f4").tolist()
        if kind == _INTEGERS:
            several = ([v] if isinstance(v, int) else _varints(v).tolist() for v in values)
            return kind, [_signed(value) for value in itertools.chain.from_iterable(several)]
    return 0, ()


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the numbers of a message's fields, with their bytes, or a number if it is one."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        value: Value
        if wire == _VARINT:
            value, at = _varint(message, at)
        else:
            size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire)
            if wire == _DELIMITED:
                size, at = _varint(message, at)
            if size is None or at + size > len(message):
                raise ValueError("a record is no tf.train.Example")
            value, at = message[at : at + size], at + size
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where what follows it begins."""
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at
    raise ValueError("a record is no tf.train.Example")


def _varints(content: bytes) -> Array:
    """Return numbers that lie side by side."""
    parts = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(parts < 128)
    begins = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    values: Array = np.zeros(len(ends), np.uint64)
    for place in range(int((ends - begins).max(initial=-1)) + 1):
        long = begins + place <= ends
        digits = (parts[begins[long] + place] & 127).astype(np.uint64)
        values[long] |= digits << np.uint64(7 * place)
    return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _table(rows: Sequence[Mapping[str, Feature]]) -> Table:
    """Return messages as a table: a value where each message has one at most, else lists."""
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    fields, columns = [], []
    for name in names:
        features = [row.get(name, (0, ())) for row in rows]
        kind = _type({kind for kind, values in features if values})
        if all(len(values) <= 1 for _, values in features):
            fields.append(lists_of_one(name, kind))
            columns.append(pa.array([next(iter(values), None) for _, values in features], kind))
        else:
            fields.append(pa.field(name, pa.list_(kind)))
            columns.append(pa.array([list(values) for _, values in features], pa.list_(kind)))
    return pa.table(columns, pa.schema(fields))


def _type(kinds: Set[int]) -> pa.DataType:
    """Return a type of the values of lists of some kinds."""
    return pa.float64() if kinds == {_FLOATS, _INTEGERS} else _TYPES[max(kinds, default=0)]


# Writing.


def to_tf_records() -> Writer:
    """Return a writer of TFRecord, with a message for each row."""

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        for table in tables:
            kinds = [_kind(name, table.schema.field(name).type) for name in table.column_names]
            for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
                pairs = zip(table.column_names, kinds, values, strict=True)
                record = _field(1, b"".join(_entry(*pair) for pair in pairs))
                length = struct.pack("<Q", len(record))
                file.write(length + _checksum(length) + record + _checksum(record))

    return Writer(write)


def _kind(name: str, kind: pa.DataType) -> int:
    within = kind.value_type if is_list(kind) else kind
    if pa.types.is_integer(within) or pa.types.is_boolean(within) or pa.types.is_null(within):
        return _INTEGERS
    if pa.types.is_floating(within):
        return _FLOATS
    if any(holds(within) for holds in _TEXTS):
        return _BYTES
    raise ConfigError(
        f"TFRecord cannot hold column {name!r}, which is {kind}: numbers, texts, bytes and lists "
        "of these are what it holds"
    )


_TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_binary, pa.types.is_large_binary),
)


def _entry(name: str, kind: int, value: Value) -> bytes:
    """Return an entry of the map of features.

    Raises:
        ConfigError: A list has no value somewhere, or a number is too large.
    """
    values = value if isinstance(value, list) else [] if value is None else [value]
    if None in values:
        raise ConfigError(f"TFRecord cannot hold a list with None in it, as column {name!r} has")
    if kind == _INTEGERS and max(values, default=0) >= 1 << 63:
        raise ConfigError(
            f"TFRecord cannot hold {max(values)} of column {name!r}: 2**63 is too much"
        )
    if kind == _FLOATS:
        content = _field(1, np.array(values, "<f4").tobytes())
    elif kind == _INTEGERS:
        content = _field(1, b"".join(_as_varint(int(each) % (1 << 64)) for each in values))
    else:
        texts = (each.encode() if isinstance(each, str) else each for each in values)
        content = b"".join(_field(1, text) for text in texts)
    return _field(1, _field(1, name.encode()) + _field(2, _field(kind, content)))


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _DELIMITED]) + _as_varint(len(content)) + content


def _as_varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _checksum(content: Iterable[int]) -> bytes:
    """Return the masked CRC-32C of bytes, as the format has it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
        table.append(value)
    return table
