"""The object store's books: free parts of its memory, and what of it can go to the disk."""

from __future__ import annotations

import random

import pytest

from dray.engines.process.objects import store as store_module
from dray.engines.process.objects.shared_memory import Allocator
from dray.engines.process.objects.store import Region, Store
from dray.engines.rpc.serialization import SPILLED, STORED, Stored

_PAGE = 1 << 16
_MANY = 2000


class _Counted(int):
    """A length that counts how often it is compared with another one."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        _Counted.compared += 1
        return int(self) < other

    def __le__(self, other: int) -> bool:
        _Counted.compared += 1
        return int(self) <= other

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_room_among_many_free_parts_is_found_with_few_looks() -> None:
    allocator = Allocator(2 * _MANY * 10)
    starts = [allocator.take(10) for _ in range(2 * _MANY)]
    for start in starts[::2]:
        assert start is not None
        allocator.free(start, 10)

    _Counted.compared = 0
    assert allocator.take(_Counted(11)) is None
    assert allocator.take(_Counted(10)) == 0

    assert _Counted.compared < 100


def test_room_is_the_smallest_part_that_suffices_and_parts_are_joined_again() -> None:
    chance = random.Random(7)
    allocator = Allocator(1000)
    used: dict[int, int] = {}
    for _ in range(2000):
        length = chance.randrange(1, 60)
        free = _free_parts(used, 1000)
        start = allocator.take(length)
        fitting = [(have, at) for at, have in free if have >= length]
        assert start == (min(fitting)[1] if fitting else None)
        if start is not None:
            used[start] = length
        if used and (start is None or chance.random() < 0.4):
            gone = chance.choice(list(used))
            allocator.free(gone, used.pop(gone))
    for start, length in used.items():
        allocator.free(start, length)
    assert allocator.used == 0
    assert allocator.take(1000) == 0


def _free_parts(used: dict[int, int], size: int) -> list[tuple[int, int]]:
    """Return the start and length of what lies between used parts."""
    parts, at = [], 0
    for start in (*sorted(used), size):
        if start > at:
            parts.append((at, start - at))
        at = start + used.get(start, 0)
    return parts


class _Watched(Region):
    """A region that counts how often regions are looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        _Watched.looks += 1
        return super().__getattribute__(name)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that is full: many objects that are looked into, and then two that are not."""
    monkeypatch.setattr(store_module, "Region", _Watched)
    store = Store((_MANY + 2) * _PAGE)
    for number in range(_MANY):
        store.pin(_seal(store, number)[1])
    _seal(store, _MANY)
    _seal(store, _MANY + 1)
    return store


def _seal(store: Store, number: int) -> Stored:
    """Add an object; return where it lies."""
    store.add(number)
    place = store.room([_PAGE])
    store.seal(number, (*place, [_PAGE], []))
    return place


def _kind(store: Store, number: int) -> object:
    payload = store.find(number).payload
    assert isinstance(payload, tuple)
    return payload[0]


def test_an_object_to_move_is_found_without_a_look_at_those_in_use(full: Store) -> None:
    _Watched.looks = 0
    _seal(full, _MANY + 2)

    assert _Watched.looks < 100
    assert _kind(full, _MANY) == SPILLED
    assert [_kind(full, number) for number in (0, _MANY + 1, _MANY + 2)] == [STORED] * 3


def test_the_object_that_was_not_used_for_longest_is_moved(full: Store) -> None:
    for number in (_MANY, 3):  # looked into for a moment; and one that is looked into no more
        payload = full.find(number).payload
        assert isinstance(payload, tuple)
        if number != 3:
            full.pin(payload[1])
        full.unpin(payload[1])

    for number in range(3):
        _seal(full, _MANY + 2 + number)

    assert [_kind(full, number) for number in (_MANY + 1, _MANY, 3)] == [SPILLED] * 3
    assert _kind(full, _MANY + 2) == STORED


def test_an_object_in_use_that_is_gone_is_freed_when_nobody_looks_into_it(full: Store) -> None:
    before = full.status()["memory_bytes"]
    payload = full.find(0).payload
    assert isinstance(payload, tuple)
    full.drop(0)
    assert full.status()["memory_bytes"] == before
    full.unpin(payload[1])
    assert full.status()["memory_bytes"] == before - _PAGE
    _seal(full, _MANY + 2)
    assert _kind(full, _MANY) == STORED  # there was room
