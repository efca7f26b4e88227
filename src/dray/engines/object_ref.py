"""References to objects, and generators of references, in the form that all engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from dray.compat.attributes import AbsentMember
from dray.errors import ArgumentTypeError

if TYPE_CHECKING:
    import asyncio

    from typing_extensions import TypeVar

    # Of the value. Strict checkers take `ObjectRef` for `ObjectRef[Any]`.
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V_co = TypeVar("V_co", covariant=True)


class ObjectRef(ABC, Generic[V_co]):
    """Stands for a value that is there, or will be: what a call returned, or what was `put`.

    A reference may be handed to tasks and actors and stored anywhere; the value lives as long as
    any reference to it does. `await ref` works in async code. In annotations, `ObjectRef[int]`
    says what the value is.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> ref = square.remote(2)  # at once; the task may still run
        >>> dray.get(square.remote(ref))
        16
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """Have Python's own messages call it as programs do."""
        cls.__name__ = "ObjectRef"

    def _is_no_value(self, *_: object) -> NoReturn:
        """Refuse what could only be meant for the value."""
        raise ArgumentTypeError(
            "an ObjectRef is not the value itself: call dray.get(ref) first, or pass the "
            "reference to a task, which gets the value"
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _is_no_value
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = _is_no_value
    __matmul__ = __rmatmul__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _is_no_value
    __getitem__ = _is_no_value

    call_site = AbsentMember()
    from_binary = AbsentMember()
    from_hex = AbsentMember()
    from_random = AbsentMember()
    job_id = AbsentMember()
    nil = AbsentMember()
    owner_address = AbsentMember()
    redis_shard_hash = AbsentMember()
    task_id = AbsentMember()
    tensor_transport = AbsentMember()

    @abstractmethod
    def binary(self) -> bytes:
        """Return the object's id as bytes."""

    def hex(self) -> str:
        """Return the object's id as text."""
        return self.binary().hex()

    def is_nil(self) -> bool:
        """Return False: every reference stands for a value."""
        return False

    def size(self) -> int:
        """Return how many bytes the object's id has."""
        return len(self.binary())

    @abstractmethod
    def future(self) -> Future[V_co]:
        """Return a future of the value."""

    def as_future(self, _internal: bool = False) -> asyncio.Future[V_co]:
        """Return a future of the value for the event loop that runs."""
        from asyncio import wrap_future  # slow to import, and rarely used

        return wrap_future(self.future())

    @abstractmethod
    def __await__(self) -> Generator[object, None, V_co]:
        """Wait for the value in async code."""

    def __repr__(self) -> str:
        return f"ObjectRef({self.hex()})"


class ObjectRefGenerator(ABC, Iterator[ObjectRef[V_co]], AsyncIterator[ObjectRef[V_co]]):
    """The references of what a generator task yields, one after another, as they come.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def count(n):
        ...     yield from range(n)
        >>> [dray.get(ref) for ref in count.remote(3)]
        [0, 1, 2]
    """

    aclose = AbsentMember()
    asend = AbsentMember()
    athrow = AbsentMember()
    close = AbsentMember()
    send = AbsentMember()
    throw = AbsentMember()

    @abstractmethod
    def completed(self) -> ObjectRef:
        """Return a reference that is ready when the generator has ended."""

    @abstractmethod
    def next_ready(self) -> bool:
        """Return whether the next reference is there, and its value; does not wait."""

    @abstractmethod
    def is_finished(self) -> bool:
        """Return whether there is nothing more to come; does not wait."""
