"""Serializers of classes that cannot be pickled, and a check that says what cannot."""

from __future__ import annotations

import copyreg
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from dray.compat.attributes import attach_getattr
from dray.engines.rpc.pickler import dumps
from dray.errors import shown

__all__ = [
    "FailureTuple",
    "deregister_serializer",
    "inspect_serializability",
    "register_serializer",
]

attach_getattr(__name__)

T = TypeVar("T")


def register_serializer(
    cls: type[T], *, serializer: Callable[[T], object], deserializer: Callable[[Any], T]
) -> None:
    """Have all code in this process pickle objects of a class in another way.

    It is Python's own registry (`copyreg`). A task or actor that sends such objects registers it
    for itself; a process that receives them need not.

    Args:
        cls: The class, without its subclasses.
        serializer: Makes something that can be pickled of an object.
        deserializer: Makes the object again; a function that can be pickled.

    Example:
        >>> import threading
        >>> from dray.util import deregister_serializer, register_serializer
        >>> register_serializer(
        ...     type(threading.Lock()), serializer=lambda lock: None,
        ...     deserializer=lambda nothing: threading.Lock(),
        ... )
        >>> deregister_serializer(type(threading.Lock()))
    """
    copyreg.pickle(cls, lambda value: (deserializer, (serializer(value),)))


def deregister_serializer(cls: type) -> None:
    """Have objects of a class pickled as if nothing had been registered.

    Example:
        >>> from dray.util import deregister_serializer, register_serializer
        >>> class Handle: ...
        >>> register_serializer(Handle, serializer=id, deserializer=lambda number: Handle())
        >>> deregister_serializer(Handle)
    """
    copyreg.dispatch_table.pop(cls, None)


@dataclass(frozen=True, eq=False)
class FailureTuple:
    """Something that cannot be pickled.

    Attributes:
        obj: The object.
        name: Its name where it was found.
        parent: Object in which it was found.

    Example:
        >>> import io, threading
        >>> from dray.util import inspect_serializability
        >>> found = {"lock": threading.Lock()}
        >>> _, failures = inspect_serializability(found, print_file=io.StringIO())
        >>> [failure.name for failure in failures]
        ['lock']
    """

    obj: Any
    name: str
    parent: Any


def inspect_serializability(
    base_obj: object, name: str | None = None, depth: int = 3, print_file: IO[str] | None = None
) -> tuple[bool, set[FailureTuple]]:
    """Find out what keeps an object from being pickled, and print it.

    Args:
        base_obj: The object.
        name: Its name in the output.
        depth: Depth to which it is searched.
        print_file: Stream to print to; None is standard output.

    Returns:
        Whether it can be pickled, and the innermost objects that cannot.

    Example:
        >>> from dray.util import inspect_serializability
        >>> pickles, failures = inspect_serializability([1, 2, 3], name="numbers")
        numbers can be pickled
    """
    found: set[FailureTuple] = set()
    title = name or getattr(base_obj, "__qualname__", None) or type(base_obj).__name__
    good = _look(base_obj, title, None, depth, found)
    file = print_file or sys.stdout
    if good:
        print(f"{title} can be pickled", file=file)
    for failure in found:
        inside = f" in {shown(failure.parent)}" if failure.parent is not None else ""
        print(f"{failure.name}{inside} cannot be pickled: {shown(failure.obj)}", file=file)
    return good, found


def _look(value: object, name: str, parent: object, depth: int, found: set[FailureTuple]) -> bool:
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 (a user's __reduce__ may raise anything)
        inner = [
            part
            for part_name, part in (_parts(value) if depth > 0 else ())
            if not _look(part, part_name, value, depth - 1, found)
        ]
        if not inner:
            found.add(FailureTuple(value, name, parent))
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if inspect.isfunction(value):
        closure = inspect.getclosurevars(value)
        yield from {**closure.globals, **closure.nonlocals}.items()
        defaults = inspect.signature(value, follow_wrapped=False).parameters.values()
        yield from ((parameter.name, parameter.default) for parameter in defaults)
    elif isinstance(value, dict):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index}", item) for index, item in enumerate(value))
    elif isinstance(value, type):
        own = ("__dict__", "__weakref__")  # which the class gets anew
        yield from ((key, item) for key, item in vars(value).items() if key not in own)
    else:
        yield from _reduced(value)


def _reduced(value: object) -> Iterator[tuple[str, object]]:
    """Give the parts of which Python would make an object again."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 (a user's __reduce__ may raise anything)
        return
    if isinstance(reduced, str):  # the name of something in a module
        return
    _, arguments, state, *_ = *reduced, None
    yield from _parts(arguments)
    for part in state if isinstance(state, tuple) else (state,):
        yield from _parts(part) if isinstance(part, dict) else [("state", part)]
