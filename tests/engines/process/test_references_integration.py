"""References that are pickled, copied or raised: they live as long as somebody can use them."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dray
from dray.errors import ActorDiedError, ObjectLostError, TaskError
from dray.session import current_runtime
from tests.support.gates import until

pytestmark = pytest.mark.usefixtures("process_engine")

LARGE = 1 << 20  # numbers


@pytest.fixture(autouse=True)
def own_session(session: Any) -> None:
    session(num_cpus=2)


def memory_is_free() -> bool:
    """Return whether no large object is there."""
    objects = current_runtime().status().objects
    assert objects is not None
    return not objects.memory_bytes


class Late:
    """A value that becomes a reference as it is pickled."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return (_same, (dray.put(self.value),))


def _same(value: Any) -> Any:
    return value


@dray.remote
def opened(value: Any) -> Any:
    return dray.get(value)


@dray.remote
def late() -> Any:
    return Late("a result")


@dray.remote(num_returns=2)
def pairs() -> Iterator[Any]:
    yield [dray.put("first")]
    yield [dray.put("second")]


def test_a_reference_that_is_made_for_a_value_lives_as_long_as_that() -> None:
    assert dray.get(opened.remote(Late("an argument"))) == "an argument"
    assert dray.get(dray.get(late.remote())) == "a result"
    value: Any = Late("a value")
    assert dray.get(dray.get(dray.put(value))) == "a value"
    first, second = dray.get(pairs.remote())
    assert dray.get([*first, *second]) == ["first", "second"]


class WithReference(Exception):
    pass


@dray.remote(max_retries=0)
def fails() -> None:
    raise WithReference(dray.put(np.ones(LARGE)))


@dray.remote
class Unmade:
    def __init__(self, value: object = None) -> None:
        raise WithReference(dray.put(np.ones(LARGE)))

    def answer(self) -> None:
        pass


@dray.remote(num_returns=2, max_retries=0)
def fails_in_the_end() -> Iterator[Any]:
    yield [dray.put("of a value")]
    raise WithReference(dray.put(np.ones(LARGE)))


@dray.remote
def depends(value: object) -> None:
    pass


def call_the_unmade(*arguments: Any) -> Any:
    handle = Unmade.remote(*arguments)
    dray.wait([handle.answer.remote()])
    return handle.answer.remote()


@pytest.mark.parametrize(
    "failing",
    [
        fails.remote,
        lambda: fails_in_the_end.remote()[1],
        call_the_unmade,
        lambda: call_the_unmade(fails.remote()),
    ],
    ids=["of a task", "of a later result", "of an actor", "of an actor's argument"],
)
def test_a_reference_in_an_error_lives_as_long_as_the_error(failing: Callable[[], Any]) -> None:
    ref = depends.remote(failing())
    dray.wait([ref])
    dray.get([depends.remote(1) for _ in range(8)])  # the worker has no reference any more
    with pytest.raises((TaskError, ActorDiedError)) as caught:
        dray.get(ref)
    error = caught.value
    failure = error.__cause__ if isinstance(error, ActorDiedError) else error
    assert isinstance(failure, TaskError)
    inner = failure.cause.args[0]
    assert dray.get(inner).sum() == LARGE
    del inner, failure, error, caught, ref
    until(memory_is_free)


@dray.remote
def fails_at_once() -> Iterator[float]:
    yield 1 / 0


def test_an_error_among_the_items_of_a_generator_has_an_id() -> None:
    (failed,) = fails_at_once.remote()
    assert repr(failed) == f"ObjectRef({failed.hex()})"


def test_a_reference_of_another_session_is_of_nothing_in_this_one() -> None:
    """Numbers begin anew in each session, and those of this one must not be meant."""
    reference, holder = dray.put("first"), Holder.remote()
    group = dray.util.placement_group([{"CPU": 1}])
    by_hand = pickle.dumps((reference, holder, group, fails_at_once.remote()))
    loaded, actor, *_ = pickle.loads(by_hand)
    assert loaded == reference
    assert dray.get([loaded, actor.answer.remote()]) == ["first", 1]
    dray.shutdown()
    dray.init(num_cpus=2)
    mine = dray.put("second"), Holder.remote(), dray.util.placement_group([{"CPU": 1}])
    lost, actor, group, items = pickle.loads(pickle.dumps(pickle.loads(by_hand)))
    uses: tuple[Callable[[], Any], ...] = (
        lambda: dray.get(lost),
        lambda: dray.get(dray.get(dray.put([lost]))),
        lambda: dray.get(opened.remote([lost])),
        lambda: dray.get(opened.remote([reference])),
        lambda: dray.get(group.ready()),
        lambda: next(items),
        lambda: asyncio.run(anext(items)),
    )
    for use in uses:
        with pytest.raises(ObjectLostError):
            use()
    with pytest.raises(ActorDiedError):
        dray.get(actor.answer.remote())
    dray.util.remove_placement_group(group)
    assert dray.get([mine[0], mine[1].answer.remote()]) == ["second", 1]
    assert mine[2].wait(0)


@dataclasses.dataclass
class Record:
    ref: Any


def test_a_copy_of_a_reference_keeps_nothing_for_ever() -> None:
    record = Record(dray.put(np.ones(LARGE)))
    copies = [dataclasses.asdict(record)["ref"], copy.copy(record.ref), copy.deepcopy(record.ref)]
    assert all(each == record.ref for each in copies)
    del record
    assert dray.get(copies[1]).sum() == LARGE
    del copies
    until(memory_is_free)


@dray.remote
def counts() -> Iterator[int]:
    yield from range(3)


def test_a_copy_of_a_generator_reads_on_by_itself() -> None:
    items = counts.options(num_returns="streaming").remote()
    assert dray.get(next(items)) == 0
    twin = copy.copy(items)
    assert [dray.get(ref) for ref in items] == [1, 2]
    assert [dray.get(ref) for ref in twin] == [1, 2]


@dray.remote
class Holder:
    def answer(self) -> int:
        return 1


def test_a_copy_of_a_handle_keeps_no_actor_for_ever() -> None:
    holder = copy.deepcopy(Holder.options(num_cpus=2).remote())
    assert dray.get(holder.answer.remote()) == 1
    del holder
    assert dray.get(Holder.options(num_cpus=2).remote().answer.remote()) == 1
