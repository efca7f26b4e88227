"""Hints: `make check` has the type checker look at what tasks and actors of this file give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import dray

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, kind: object) -> object:
        return value


@dray.remote
def length(text: str, more: int = 0) -> int:
    return len(text) + more


@dray.remote(num_cpus=0.5)
def count(n: int) -> Iterator[int]:
    yield from range(n)


@dray.remote(num_returns=2)
def halves(text: str) -> tuple[str, str]:
    return text[:1], text[1:]


@dray.remote
def untyped(x):  # type: ignore[no-untyped-def]
    return x


class Counter:
    def add(self, n: int) -> int:
        return n + 1


def test_a_tasks_result_has_the_type_of_the_function(core_engine: str) -> None:
    text = assert_type(dray.put("word"), dray.ObjectRef[str])
    of_reference = assert_type(length.remote(text, more=2), dray.ObjectRef[int])
    assert assert_type(dray.get(of_reference), int) == 6
    of_value = length.options(num_cpus=0.5).remote("word")
    assert assert_type(dray.get([of_reference, of_value]), list[int]) == [6, 4]
    ready, late = dray.wait([of_value], timeout=60)
    assert assert_type(ready, list[dray.ObjectRef[int]]) == [of_value]
    assert late == []


def test_a_generators_items_have_their_type(core_engine: str) -> None:
    items = assert_type(count.remote(2), dray.ObjectRefGenerator[int])
    assert [assert_type(dray.get(item), int) for item in items] == [0, 1]


def test_what_no_hint_tells_of_is_anything(core_engine: str) -> None:
    first, second = halves.remote("word")
    assert assert_type(dray.get(first), Any) == "w"
    assert dray.get([first, second]) == ["w", "ord"]
    assert_type(length.options(num_returns=1).remote("word"), Any)
    assert assert_type(dray.get(untyped.remote(3)), Any) == 3


def test_actors_have_the_type_of_their_class(core_engine: str) -> None:
    kind = assert_type(dray.remote(num_cpus=0)(Counter), dray.actor.ActorClass[Counter])
    actor = assert_type(kind.options(max_restarts=1).remote(), dray.ActorHandle[Counter])
    ref: dray.ObjectRef[int] = actor.add.remote(1)
    assert assert_type(dray.get(ref), int) == 2


def test_calls_without_remote_are_refused(core_engine: str) -> None:
    with pytest.raises(TypeError, match=r"length\.remote"):
        length("word")  # type: ignore[operator]
    with pytest.raises(TypeError, match="takes references"):
        dray.get(length)  # type: ignore[call-overload]
    kind = dray.remote(Counter)
    with pytest.raises(TypeError, match=r"Counter\.remote"):
        kind()  # type: ignore[operator]


def test_modules_are_there_without_an_import_of_their_own() -> None:
    assert dray.data.Dataset.__module__.startswith("dray.data")
    assert dray.util.queue.Queue.__module__ == "dray.util.queue"
    assert dray.train.backend.Backend.__module__ == "dray.train.backend"
    shard: type[dray.data.DataIterator] = dray.data.DataIterator
    assert shard is dray.data.DataIterator
