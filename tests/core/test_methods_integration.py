"""Which function a call of an actor's method runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

import dray
from dray.core.actor import ActorMethod
from dray.errors import ActorDiedError


def _from_outside(self: Any, by: int) -> int:
    return int(self.sum + by)


class Base:
    def inherited(self) -> str:
        return "of the base"


class Named(Base):
    """Each attribute has the name of a method; the class's function is what is called."""

    assigned = _from_outside
    part = staticmethod(partial(max, 7))  # from Python 3.14 on it would be given the actor

    def __init__(self) -> None:
        self.sum = 3
        self.total = 0  # type: ignore[assignment, method-assign]
        self.inherited = "hidden"  # type: ignore[assignment, method-assign]
        self.static = "hidden"  # type: ignore[assignment, method-assign]
        self.of_class = "hidden"  # type: ignore[assignment, method-assign]
        self.items = ["hidden"]  # type: ignore[assignment, method-assign]
        self.wrapped = lambda: 0  # type: ignore[method-assign]

    def total(self) -> int:
        return self.sum

    def items(self) -> Iterator[int]:
        yield from range(self.sum)

    def wrapped(self) -> int:
        return self.sum

    @staticmethod
    def static(value: int) -> int:
        return value

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    @property
    def doubled(self) -> int:
        return 2 * self.sum

    def __call__(self, by: int) -> int:
        return self.doubled * by


class AsyncNamed:
    def __init__(self) -> None:
        self.value = 5  # type: ignore[assignment, method-assign]
        self.items = "hidden"  # type: ignore[assignment, method-assign]

    async def value(self) -> int:
        return int(self.__dict__["value"])

    async def items(self) -> AsyncIterator[int]:
        yield 1
        yield 2


def _check() -> None:
    named = dray.remote(Named).remote()
    assert dray.get(named.total.remote()) == 3
    assert dray.get(named.inherited.remote()) == "of the base"
    assert dray.get(named.static.remote(4)) == 4
    assert dray.get(named.of_class.remote()) == "Named"
    assert dray.get(named.assigned.remote(1)) == 4
    assert dray.get(named.wrapped.remote()) == 3
    assert dray.get(named.__call__.remote(2)) == 12
    assert [dray.get(item) for item in named.items.remote()] == [0, 1, 2]
    assert dray.get(named.__ray_ready__.remote())
    assert dray.get(named.__ray_call__.remote(lambda self, x: self.sum + x, x=4)) == 7
    assert isinstance(named.__ray_call__, ActorMethod)
    named.__ray_terminate__.remote()
    with pytest.raises(ActorDiedError):
        dray.get(named.of_class.remote())
    several = dray.remote(AsyncNamed).remote()
    assert dray.get(several.value.remote()) == 5
    assert dray.get(several.__ray_ready__.remote())
    items = several.items.options(num_returns="streaming").remote()
    assert [dray.get(item) for item in items] == [1, 2]


def test_an_attribute_with_the_name_of_a_method_does_not_hide_it(core_engine: str) -> None:
    _check()


@pytest.mark.usefixtures("_quiet")
def test_nor_does_it_on_the_inline_engine() -> None:
    dray.shutdown()
    dray.init(engine="inline")
    _check()
    assert dray.get(dray.remote(Named).remote().part.remote(9)) == 9
    dray.shutdown()


def test_what_is_called_need_not_be_a_function(process_engine: None) -> None:
    assert dray.get(dray.remote(Named).remote().part.remote(9)) == 9


class AsyncMade:
    async def __init__(self, start: int) -> None:  # type: ignore[misc]
        await asyncio.sleep(0)
        self.value = start

    async def more(self) -> int:
        self.value += 1
        return self.value


class AsyncUnmade:
    async def __init__(self) -> None:  # type: ignore[misc]
        await asyncio.sleep(0)
        raise ValueError("not to be made")

    async def more(self) -> int:
        return 0


def _check_async_init() -> None:
    assert dray.get(dray.remote(AsyncMade).remote(3).more.remote()) == 4
    with pytest.raises(ActorDiedError, match="not to be made"):
        dray.get(dray.remote(AsyncUnmade).remote().more.remote())


def test_init_may_be_async(core_engine: str) -> None:
    _check_async_init()


@pytest.mark.usefixtures("_quiet")
def test_init_may_be_async_on_the_inline_engine() -> None:
    dray.shutdown()
    dray.init(engine="inline")
    _check_async_init()
    dray.shutdown()


class Scaled:
    FACTOR = 3

    @staticmethod
    def scale(value: int) -> int:
        return value * ActorOfScaled.FACTOR

    def scaled(self, value: int) -> int:
        return int(ActorOfScaled.scale(value))

    def call(self, method: Any, value: int) -> int:
        return int(dray.get(method.remote(value)))


ActorOfScaled: Any = dray.remote(Scaled)


def test_a_class_of_actors_has_the_attributes_of_the_class(process_engine: None) -> None:
    assert (ActorOfScaled.FACTOR, ActorOfScaled.scale(2)) == (3, 6)
    actor = ActorOfScaled.remote()
    assert dray.get(actor.scaled.remote(4)) == 12
    assert {"scaled", "scale", "FACTOR", "remote"} <= {*dir(ActorOfScaled)}  # what shells complete
    assert {"scaled", "call"} <= {*dir(actor)}
    with pytest.raises(AttributeError, match="'Scaled' has no attribute 'nothing'"):
        ActorOfScaled.nothing  # noqa: B018


def test_a_method_is_passed_on_as_an_argument(process_engine: None) -> None:
    scaled, other = ActorOfScaled.remote(), ActorOfScaled.remote()
    assert dray.get(other.call.remote(scaled.scaled, 5)) == 15


def test_a_class_of_actors_is_no_base() -> None:
    base: Any = dray.remote(Base)
    with pytest.raises(TypeError, match=r"remove @dray\.remote from Base"):

        class Derived(base):
            pass
