"""TFRecord files with `tf.train.Example` messages, without TensorFlow and protobuf.

A file is a sequence of records: a length, its checksum, that many bytes, and their checksum. A
message is a map from names to features, each a list of bytes, of floats or of integers.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dray.data.forms.blocks import Array, Table, Value
from dray.data.forms.lists import is_list
from dray.data.sources.base import BLOCK_BYTES, BlocksSource, Filesystem
from dray.data.sources.files import by_file
from dray.data.sources.finding import naming
from dray.data.sources.partitions import Labels
from dray.data.sources.writing import Writer
from dray.errors import ConfigError

# The type of a feature's list, as its number in the message, and the values.
Feature: TypeAlias = tuple[int, Sequence[Value]]
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
_NONE: Feature = (0, ())
_NAMES = {_BYTES: "bytes", _FLOATS: "floats", _INTEGERS: "integers"}
# The numbers of these types in schemas of TensorFlow Metadata.
_OF_SCHEMAS = {1: _BYTES, 2: _INTEGERS, 3: _FLOATS}
_TYPES = {0: pa.null(), _BYTES: pa.binary(), _FLOATS: pa.float32(), _INTEGERS: pa.int64()}
# The wire types of the fields of a message.
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_RECORDS = 4096


@dataclass(frozen=True)
class Reading:
    """The reading of all files of a dataset, which determines the features that are lists.

    Args:
        files: All files.
        opening: Arguments of Arrow for opening a file.
        schema: The type of each feature; all of them are then lists. If None, the first records
            determine the lists.
    """

    files: Sequence[str]
    filesystem: Filesystem
    opening: Mapping[str, object]
    schema: Mapping[str, int] | None

    def tables(self, path: str) -> Iterator[Table]:
        """Yield the messages of a file."""
        with naming(path):
            for rows in _some(self._records(path)):
                yield self._table(rows)

    def _records(self, path: str) -> Iterator[bytes]:
        with naming(path), self.filesystem.open_input_stream(path, **self.opening) as file:
            yield from _records(file)

    @functools.cached_property
    def _are_lists(self) -> dict[str, bool]:
        """The features, and whether they are lists; those of later records are added later."""
        every = itertools.chain.from_iterable(map(self._records, self.files))
        found: dict[str, bool] = {}
        for name, (_, values) in (pair for row in next(_some(every), []) for pair in row.items()):
            if values:
                found[name] = found.get(name, False) or len(values) > 1
        return found

    def _table(self, rows: Sequence[Mapping[str, Feature]]) -> Table:
        names = dict.fromkeys(itertools.chain(self.schema or (), *rows))
        return pa.table(
            {name: self._column(name, [row.get(name) for row in rows]) for name in names}
        )

    def _column(self, name: str, features: Sequence[Feature | None]) -> pa.Array:
        kinds = {kind for kind, values in filter(None, features) if values}
        kind = _type(kinds if self.schema is None else {self._kind(name, kinds)})
        several = any(len(values) > 1 for _, values in filter(None, features))
        if self.schema is not None or (kinds and self._are_lists.setdefault(name, several)):
            lists = [None if feature is None else list(feature[1]) for feature in features]
            return pa.array(lists, pa.list_(kind))
        if several:
            raise ValueError(
                f"feature {name!r} has several values in a record, but at most one in the first "
                "records: pass tf_schema=, which makes every feature a list in all records"
            )
        return pa.array([next(iter((feature or _NONE)[1]), None) for feature in features], kind)

    def _kind(self, name: str, kinds: Set[int]) -> int:
        """Return the type of a feature according to the schema.

        Raises:
            ValueError: The schema lacks the feature, or records have another type.
        """
        assert self.schema is not None
        if name not in self.schema:
            raise ValueError(f"feature {name!r} is in a record, but not in tf_schema=")
        kind = self.schema[name]
        if kinds - {kind}:
            found = " and ".join(_NAMES[each] for each in sorted(kinds))
            raise ValueError(
                f"feature {name!r} is {_NAMES[kind]} in tf_schema=, but a record has {found}"
            )
        return kind


def tf_records_source(
    files: Sequence[str], _: Filesystem, label: Callable[[str], Labels], reading: Reading
) -> BlocksSource:
    """Return TFRecord files as a source with a row for each message."""
    return by_file(files, reading.tables, label)


def kinds_of(tf_schema: Value) -> dict[str, int]:
    """Return the types of features by name from a schema of TensorFlow Metadata.

    Raises:
        ConfigError: `tf_schema` is not such a schema, or a feature has another type.
    """
    try:
        return {feature.name: _OF_SCHEMAS[feature.type] for feature in tf_schema.feature}
    except (AttributeError, KeyError) as error:
        raise ConfigError(
            "tf_schema must be a Schema of tensorflow_metadata, whose features are BYTES, INT or "
            f"FLOAT, not {tf_schema!r}"
        ) from error


def _some(records: Iterable[bytes]) -> Iterator[list[dict[str, Feature]]]:
    """Yield the features of records, grouped in blocks."""
    held: list[dict[str, Feature]] = []
    size = 0
    for record in records:
        held.append(_features(record))
        size += len(record)
        if size >= BLOCK_BYTES or len(held) >= _RECORDS:
            yield held
            held, size = [], 0
    if held:
        yield held


def _records(file: pa.NativeFile) -> Iterator[bytes]:
    while head := file.read(12):
        if len(head) < 12 or head[8:] != _checksum(head[:8]):
            raise ValueError("it is not a TFRecord file, or it is damaged")
        (length,) = struct.unpack("<Q", head[:8])
        record: bytes = file.read(length)
        if len(record) < length or len(file.read(4)) < 4:
            raise ValueError("its last record is not complete")
        yield record


def _features(record: bytes) -> dict[str, Feature]:
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
    return _NONE


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the numbers of a message's fields, each with its bytes or its integer value."""
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
                raise ValueError("a record is not a tf.train.Example")
            value, at = message[at : at + size], at + size
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an integer, and the position after it."""
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at
    raise ValueError("a record is not a tf.train.Example")


def _varints(content: bytes) -> Array:
    """Return consecutive integers."""
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


def _type(kinds: Set[int]) -> pa.DataType:
    """Return an Arrow type for the values of lists of these types."""
    return pa.float64() if kinds == {_FLOATS, _INTEGERS} else _TYPES[max(kinds, default=0)]


# Writing.


def to_tf_records() -> Writer:
    """Return a writer of TFRecord files with a message for each row."""

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
        f"TFRecord cannot hold column {name!r}, which is {kind}: it holds numbers, texts, bytes "
        "and lists of these"
    )


_TEXTS = (
    *(pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_binary, pa.types.is_large_binary),
)


def _entry(name: str, kind: int, value: Value) -> bytes:
    """Return an entry of the map of features.

    Raises:
        ConfigError: A list contains None, or an integer is too large.
    """
    values = value if isinstance(value, list) else [] if value is None else [value]
    if None in values:
        raise ConfigError(f"TFRecord cannot hold a list with None in it, as column {name!r} has")
    if kind == _INTEGERS and max(values, default=0) >= 1 << 63:
        raise ConfigError(
            f"TFRecord cannot hold {max(values)} of column {name!r}: its integers are below 2**63"
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


def _checksum(content: bytes) -> bytes:
    """Return the masked CRC-32C of bytes that the format requires."""
    crc = _crc32c()(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
    """Return a function for CRC-32C: google-crc32c if installed, as by `dray[gcs]`."""
    try:
        import google_crc32c
    except ImportError:
        return _by_table
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def _by_table(content: bytes) -> int:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 * (value & 1)
        table.append(value)
    return table
