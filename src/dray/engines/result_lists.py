"""The results of a call with several results, whose number is given or known only at its end."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from dray.engines.object_ref import ObjectRef, ObjectRefGenerator


def split(value: Any, count: int, name: str) -> Iterator[Any]:
    """Yield what each of so many results gets; a generator need not go on after that.

    Raises:
        ValueError: There are fewer parts, or a value has more; what was yielded before counts.
    """
    if inspect.isgenerator(value):
        given = 0
        for part in itertools.islice(value, count):
            yield part
            given += 1
        if given != count:
            raise ValueError(f"{name} yielded {given} values, but num_returns is {count}")
    elif count == 1:
        yield value
    elif count:
        yield from _parts_of(value, count, name)


def _parts_of(value: Any, count: int, name: str) -> list[Any]:
    try:
        given = len(value)
    except TypeError:  # it is one value
        given = 1
    else:
        parts = list(value) if given == count else []
        given = len(parts) or given
    if given != count:
        raise ValueError(f"{name} returned {given} values, but num_returns is {count}")
    return parts


class DynamicObjectRefGenerator(ObjectRefGenerator):
    """References that are all there: the value of a task with `num_returns="dynamic"`.

    If the task has raised, the last one stands for its error.

    Example:
        >>> import dray
        >>> @dray.remote(num_returns="dynamic")
        ... def count(n):
        ...     yield from range(n)
        >>> [dray.get(ref) for ref in dray.get(count.remote(3))]
        [0, 1, 2]
    """

    def __init__(self, refs: Sequence[ObjectRef]) -> None:
        self._refs = list(refs)
        self._index = 0

    def __next__(self) -> ObjectRef:
        if self._index == len(self._refs):
            raise StopIteration
        self._index += 1
        return self._refs[self._index - 1]

    async def __anext__(self) -> ObjectRef:
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    def completed(self) -> ObjectRef:
        return self._refs[-1]

    def next_ready(self) -> bool:
        return not self.is_finished()

    def is_finished(self) -> bool:
        return self._index == len(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __reduce__(self) -> tuple[object, ...]:
        return (DynamicObjectRefGenerator, (self._refs,))
