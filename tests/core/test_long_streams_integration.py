"""Generators of many items: what is read and dropped takes no memory, and no reader misses any."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dray
from dray.util.state import summarize_objects
from tests.support.gates import Gate, count_up

pytestmark = pytest.mark.usefixtures("process_engine")

_ITEM = 1 << 20
_ITEMS = 24
_FEW = 8  # those that are read, that are ahead, and that somebody writes


def _memory() -> int:
    return summarize_objects()["cluster"]["memory_bytes"]


@dray.remote(_generator_backpressure_num_objects=2)
def large(gate: Gate | None = None) -> Iterator[bytes]:
    for number in range(_ITEMS):
        yield bytes([number]) * _ITEM
    if gate is not None:
        gate.wait()


def _read(items: dray.ObjectRefGenerator, count: int = _ITEMS) -> Iterator[int]:
    for _ in range(count):
        yield dray.get(next(items))[0]


def _read_async(items: dray.ObjectRefGenerator) -> Iterator[int]:
    async def one() -> int:
        return (await (await items.__anext__()))[0]

    for _ in range(_ITEMS):
        yield asyncio.run(one())


@pytest.mark.parametrize("read", [_read, _read_async])
def test_items_that_are_read_and_dropped_go_while_the_generator_runs(
    read: Callable[[dray.ObjectRefGenerator], Iterator[int]], gate: Gate
) -> None:
    before = _memory()
    items = large.remote(gate)
    for number, value in enumerate(read(items)):
        assert value == number
        assert _memory() - before <= _FEW * _ITEM
    gate.open()
    with pytest.raises(StopIteration):
        next(items)
    assert _memory() == before


def test_a_reference_keeps_its_item() -> None:
    items = large.remote()
    first = next(items)
    assert list(_read(items, _ITEMS - 1)) == list(range(1, _ITEMS))
    assert dray.get(first)[0] == 0


@dray.remote
class Reader:
    def __init__(self) -> None:
        self.most = 0

    def take(self, items: dray.ObjectRefGenerator) -> None:
        self.items = items

    def read(self, count: int) -> list[int]:
        found = []
        for value in _read(self.items, count):
            found.append(value)
            self.most = max(self.most, _memory())
        return found

    def most_memory(self) -> int:
        return self.most


def test_each_of_several_readers_has_all_items() -> None:
    items, reader = large.remote(), Reader.remote()
    assert list(_read(items, 2)) == [0, 1]
    dray.get(reader.take.remote(items))
    assert list(_read(items, _ITEMS - 2)) == list(range(2, _ITEMS))
    assert dray.get(reader.read.remote(_ITEMS - 2)) == list(range(2, _ITEMS))


def test_a_generator_that_was_handed_on_frees_what_its_last_holder_has_read() -> None:
    before = _memory()
    items, reader = large.remote(), Reader.remote()
    dray.get(reader.take.remote(items))
    assert list(_read(items, 1)) == [0]
    del items
    assert dray.get(reader.read.remote(_ITEMS)) == list(range(_ITEMS))
    assert dray.get(reader.most_memory.remote()) - before <= _FEW * _ITEM


def test_a_reader_that_runs_again_has_all_items(tmp_path: Path) -> None:
    @dray.remote(max_retries=1)
    def reader(items: dray.ObjectRefGenerator, path: Path) -> list[int]:
        found = list(_read(items, _ITEMS // 2))
        if count_up(path) == 1:
            os._exit(1)
        return found + list(_read(items, _ITEMS - _ITEMS // 2))

    # Nobody else has a reference to the generator.
    assert dray.get(reader.remote(large.remote(), tmp_path / "count")) == list(range(_ITEMS))


def test_a_generator_that_runs_again_goes_on_after_what_was_read_and_dropped(
    gate: Gate, tmp_path: Path
) -> None:
    @dray.remote(max_retries=1)
    def dying(gate: Gate, path: Path) -> Iterator[int]:
        count = count_up(path)
        yield from range(10)
        if count == 1:
            gate.wait()
            os._exit(1)
        yield 10

    items = dying.remote(gate, tmp_path / "count")
    assert [dray.get(next(items)) for _ in range(10)] == list(range(10))
    gate.open()
    assert [dray.get(ref) for ref in items] == [10]
