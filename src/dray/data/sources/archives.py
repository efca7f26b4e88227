"""WebDataset archives of samples: files with the same name, with an extension for each column."""

from __future__ import annotations

import fnmatch
import functools
import io
import json
import pickle
import posixpath
import re
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dray.checks import require
from dray.data.forms.blocks import Row, Table, Value, rows_to_table, table_rows
from dray.data.sources.base import BLOCK_BYTES, BlocksSource, Filesystem
from dray.data.sources.files import by_file
from dray.data.sources.finding import naming
from dray.data.sources.images import open_image
from dray.data.sources.partitions import Labels
from dray.data.sources.writing import Writer, as_json
from dray.errors import (
    ConfigError,
    DataFunctionError,
    StorageError,
    describe,
    mixed_with,
    shown_url,
)

# Makes a sample from another one.
Step: TypeAlias = Callable[[Row], Row]
# A step; True or a kind of images for the default step; a list of steps; or None.
Coding: TypeAlias = "bool | str | Step | Sequence[bool | str | Step] | None"
# Patterns of names, or a function that returns whether to read a name; None reads all.
Names: TypeAlias = "Sequence[str] | Callable[[str], object] | None"

_KEY, _URL = "__key__", "__url__"
_READ_IMAGES = ("jpg", "png", "ppm", "pgm", "pbm", "pnm")
_ROWS = 512


@dataclass(frozen=True)
class Reading:
    """The options for reading archives.

    Attributes:
        decoder: Converts the bytes of a sample to values.
        fileselect: Names of the files to read.
        filerename: A function that renames files, or several.
        suffixes: Extensions of the files to read.
        expand_json: Whether the fields of a JSON object become columns.
    """

    decoder: Coding
    fileselect: Names
    filerename: Callable[[str], str] | Sequence[Callable[[str], str]] | None
    suffixes: Names
    expand_json: bool

    def samples(self, file: pa.NativeFile, path: str) -> Iterator[Row]:
        """Yield the decoded samples of an archive."""
        steps = _steps(self.decoder, _decoded, "read_webdataset")
        for sample in _joined(self._members(file), path):
            row = functools.reduce(lambda made, step: step(made), steps, {**sample, _URL: path})
            yield {**_fields(row), **row} if self.expand_json else row

    def _members(self, file: pa.NativeFile) -> Iterator[tuple[str, str, bytes]]:
        """Yield the key, the extension and the bytes of each file."""
        renames = self.filerename if isinstance(self.filerename, Sequence) else [self.filerename]
        with tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is None:
                    continue
                name = functools.reduce(
                    lambda made, rename: rename(made), filter(None, renames), member.name
                )
                folder, file_name = posixpath.split(name)
                base, dot, ending = file_name.partition(".")
                if base and dot and _counts(name, self.fileselect):
                    chosen = _counts(ending, self.suffixes)
                    yield posixpath.join(folder, base), ending if chosen else "", content.read()


def _fields(sample: Row) -> Row:
    """Return the fields of the object in `json`.

    Raises:
        ValueError: There is no such object.
    """
    found = sample.get("json")
    found = json.loads(found) if isinstance(found, bytes | str) else found
    if not isinstance(found, dict):
        raise ValueError(f"sample {sample[_KEY]!r} has no JSON object, which expand_json needs")
    return found


def _counts(name: str, names: Names) -> bool:
    if names is None:
        return True
    if callable(names):
        return bool(names(name))
    return any(
        fnmatch.fnmatch(f".{name}", pattern)
        if re.search(r"[*?]", pattern)
        else pattern in (name, f".{name}")
        for pattern in names
    )


def _joined(members: Iterable[tuple[str, str, bytes]], path: str) -> Iterator[Row]:
    """Yield a sample for the consecutive files that have the same key.

    Raises:
        StorageError: Files with the same key are not consecutive, or have the same extension.
    """
    sample: Row = {}
    seen: set[str] = set()
    for key, ending, content in members:
        if sample.get(_KEY) != key:
            if len(sample) > 1:
                yield sample
            if key in seen:
                raise StorageError(
                    f"{shown_url(path)} has the files of {key!r} in several places: create the "
                    "archive again, sorted by name (tar --sort=name)"
                )
            seen.add(key)
            sample = {_KEY: key}
        if ending in sample:
            raise StorageError(f"{shown_url(path)} has {key}.{ending} twice")
        if ending:
            sample[ending] = content
    if len(sample) > 1:
        yield sample


def archive_source(
    files: Sequence[str],
    filesystem: Filesystem,
    label: Callable[[str], Labels],
    reading: Reading,
    opening: Mapping[str, object],
) -> BlocksSource:
    """Return archives as a source, with a row for each sample."""

    def parts(path: str) -> Iterator[Table]:
        rows: list[Row] = []
        size = 0
        with naming(path), filesystem.open_input_stream(path, **opening) as file:
            for sample in reading.samples(file, path):
                rows.append(sample)
                size += sum(map(_bytes_of, sample.values()))
                if size >= BLOCK_BYTES or len(rows) >= _ROWS:
                    yield rows_to_table(rows)
                    rows, size = [], 0
        if rows:
            yield rows_to_table(rows)

    return by_file(files, parts, label)


def _bytes_of(value: Value) -> int:
    return value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)


def to_archive(encoder: Coding) -> Writer:
    """Return a writer of archives with a sample for each row.

    Args:
        encoder: Converts the values of a row to bytes or strings.
    """
    steps = _steps(encoder, _encoded, "write_webdataset")

    def write(tables: Iterator[Table], file: pa.NativeFile) -> None:
        keys: set[str] = set()
        with tarfile.open(fileobj=file, mode="w|") as archive:
            for table in tables:
                for row in table_rows(table):
                    sample = functools.reduce(lambda made, step: step(made), steps, row)
                    _add(archive, _new_key(sample, keys), sample)

    return Writer(write)


def _new_key(sample: Row, keys: set[str]) -> str:
    """Return the name of a sample, and add it to the known names.

    Raises:
        ConfigError: A reader would assign the files to another sample, or ignore them.
    """
    key = uuid.uuid4().hex if sample.get(_KEY) is None else str(sample[_KEY])
    name = posixpath.basename(key)
    if not name or "." in name:
        raise ConfigError(
            f"{_KEY} is {key!r}, but it must not be empty, nor have a dot, at which a reader "
            "ends the name"
        )
    if key in keys:
        raise ConfigError(f"{_KEY} is {key!r} in two rows of a file")
    keys.add(key)
    return key


def _add(archive: tarfile.TarFile, key: str, sample: Row) -> None:
    for ending, value in sample.items():
        if value is None or ending.startswith("__"):
            continue
        if not isinstance(value, bytes | str):
            raise ConfigError(
                f"column {ending!r} is of {type(value).__name__}, which dray cannot write into "
                "an archive: name it after a kind of file (txt, cls, json, npy, png), or pass "
                "as encoder= a function that turns it into bytes"
            )
        content = value.encode() if isinstance(value, str) else value
        member = tarfile.TarInfo(f"{key}.{ending}")
        member.size, member.mode = len(content), 0o644
        archive.addfile(member, io.BytesIO(content))


def _steps(coding: Coding, usual: Callable[[object, Row], Row], method: str) -> list[Step]:
    if coding is None:
        return []
    several = coding if isinstance(coding, list | tuple) else [coding]
    return [
        functools.partial(_of_user, step, method)
        if callable(step)
        else functools.partial(usual, step)
        for step in several
    ]


def _of_user(step: Step, method: str, sample: Row) -> Row:
    called = f"{method}({getattr(step, '__name__', type(step).__name__)})"
    try:
        made = step(sample)
    except Exception as error:
        text = f"{called} failed on sample {sample.get(_KEY)!r}: {describe(error)}"
        raise mixed_with(DataFunctionError(text), error, lambda kind: kind(text)) from error
    if not isinstance(made, dict):
        raise ConfigError(f"{called} must return a dict, not a {type(made).__name__}")
    return made


def _decoded(form: object, sample: Row) -> Row:
    """Return a sample whose bytes are decoded according to the extensions."""
    return {
        name: value if name.startswith("__") else _value(name, value, form)
        for name, value in sample.items()
    }


def _value(name: str, content: bytes, form: object) -> Value:
    kind = name.rpartition(".")[2]
    if kind in ("txt", "text"):
        return content.decode()
    if kind in ("cls", "cls2"):
        return int(content)
    if kind == "json":
        return json.loads(content)
    if kind == "npy":
        return np.load(io.BytesIO(content))
    if kind == "mp":
        require("msgpack", "msgpack")
        import msgpack

        return msgpack.unpackb(content, raw=False)
    if kind in _READ_IMAGES:
        image = open_image(content)
        return image if form == "PIL" else np.asarray(image)
    if kind in ("pt", "pth", "pickle", "pkl"):
        raise ConfigError(
            f"{name!r} is pickled, and loading it may run any code: if you trust its author, "
            "pass as decoder= a function that loads it"
        )
    return content


def _encoded(form: object, sample: Row) -> Row:
    """Return a sample whose values are encoded according to the extensions."""
    return {
        name: value if value is None or name.startswith("__") else _content(name, value)
        for name, value in sample.items()
    }


def _content(name: str, value: Value) -> Value:
    kind, made = name.rpartition(".")[2], io.BytesIO()
    if kind in ("cls", "cls2"):
        return str(value)
    if kind == "json":
        return as_json(value)
    if kind == "npy":
        np.save(made, value, allow_pickle=False)
        return made.getvalue()
    if kind == "mp":
        require("msgpack", "msgpack")
        import msgpack

        return msgpack.packb(value)
    if kind in ("pt", "pth"):
        import torch

        torch.save(value, made)
        return made.getvalue()
    if kind in ("pickle", "pkl"):
        return pickle.dumps(value)
    if kind in (*_READ_IMAGES, "jpeg"):
        require("PIL", "pillow")
        from PIL import Image

        image = Image.fromarray(value) if isinstance(value, np.ndarray) else value
        image.save(made, "jpeg" if kind == "jpg" else kind)
        return made.getvalue()
    return value
