"""Lines on the disk: whatever is torn or damaged, the rest is read, and nothing false is."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.errors import StorageError
from dray.train.storage.sealed import LineFile, read_lines, seal, unseal

VALUES = st.one_of(
    st.text(st.characters()), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
RECORDS = st.fixed_dictionaries(
    {"n": st.integers(0, 9)}, optional={"metrics": st.dictionaries(st.text(), VALUES, max_size=3)}
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), RECORDS),
        st.tuples(st.just("kill"), st.integers(0, 10_000)),
        st.tuples(st.just("full"), st.tuples(RECORDS, st.integers(0, 90))),
    ),
    max_size=10,
)


def read(path: Path) -> tuple[list[Any], list[str]]:
    warnings: list[str] = []
    return list(read_lines(path, warnings.append)), warnings


@given(steps=STEPS, reopened=st.booleans())
def test_torn_lines_and_full_disks_lose_nothing_that_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]], reopened: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    written: list[Any] = []
    file = LineFile(path)
    torn = 0
    for what, how in steps:
        if what == "append":
            file.append(how)
            written.append(how)
        elif what == "kill":  # within the write of a line
            line = seal(json.dumps({"n": 1, "x": "y" * 50}).encode()) + b"\n"
            cut = line[: how % (len(line) - 1)]  # a line that lacks but its end is whole
            with open(path, "ab") as raw:
                raw.write(cut)
            file.close()
            torn += bool(cut)
            file = LineFile(path)
        else:
            record, room = how
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "write", _with_room(room))
                refusal = _append(file, record)
            if refusal is None:
                written.append(record)
            else:
                assert refusal.errno == errno.ENOSPC
                assert str(path) in str(refusal)
    file.close()
    if reopened:
        LineFile(path).close()
    records, warnings = read(path)
    assert records == written
    assert len(warnings) == bool(torn)


def _append(file: LineFile, record: Any) -> StorageError | None:
    try:
        file.append(record)
    except StorageError as error:
        return error
    return None


def _with_room(room: int) -> Any:
    real, left = os.write, room

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(fd, data[:left])
        left -= count
        return count

    return write


@given(records=st.lists(RECORDS, min_size=1, max_size=5), at=st.integers(0), bit=st.integers(0, 7))
def test_one_flipped_bit_is_told_and_gives_no_false_record(
    tmp_path_factory: pytest.TempPathFactory, records: list[Any], at: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("flip") / "lines.jsonl"
    file = LineFile(path)
    for record in records:
        file.append(record)
    file.close()
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    found, warnings = read(path)
    assert found == records or warnings
    rest = iter(records)
    assert all(each in rest for each in found)  # in their order, none made up


@given(RECORDS)
def test_sealed_is_plain_json(record: dict[str, Any]) -> None:
    sealed = seal(json.dumps(record).encode())
    plain = json.loads(sealed)
    assert plain.pop("crc32") > -1
    assert plain == record == unseal(sealed)


def test_a_deleted_file_is_not_written_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path = tmp_path / "lines.jsonl"
    file = LineFile(path)
    file.append({"a": 1})
    path.unlink()
    now += 1
    with pytest.raises(StorageError, match=f"{path} was deleted"):
        file.append({"a": 2})
    file.close()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "lines", tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(StorageError, match=f"^{path} cannot be written"):
            LineFile(path)
