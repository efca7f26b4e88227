"""The base class of all errors of dray; it is public in `dray.errors`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound="DrayError")


class DrayError(Exception):
    """The base class of dray's errors; `except DrayError` catches all of them.

    Example:
        >>> import dray.exceptions
        >>> try:
        ...     dray.get("no reference")
        ... except dray.exceptions.RayError as error:
        ...     print(type(error).__name__)
        ArgumentTypeError
    """

    __module__ = "dray.errors"  # the public module

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith(f"{DrayError.__module__}."):  # a file in this directory
            cls.__module__ = DrayError.__module__


class RemoteTraceback(Exception):
    """The `__cause__` of an error from another process: the traceback in that process, as text."""

    __module__ = "dray.errors"  # the public module

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text.rstrip()}\n"


def mixed_with(error: E, cause: BaseException, build: Callable[[type[E]], E]) -> E:
    """Return an error whose type is a subclass of both errors' types, with the cause's attributes.

    Args:
        error: The exception to raise. It is returned as it is if Python cannot combine the types.
        cause: The user's exception.
        build: Function that makes the new error from its type.
    """
    kind = type(cause)
    if not isinstance(cause, Exception) or isinstance(cause, StopIteration | StopAsyncIteration):
        return error  # a loop or an await would take it for the end
    try:
        home: dict[str, object] = {"__module__": type(error).__module__}
        group: Any = cause if hasattr(cause, "split") else None  # `__new__` takes its parts
        if group is not None:
            home["__new__"] = lambda both, *_, **__: kind.__new__(
                both, group.message, group.exceptions
            )
        both = type(f"{type(error).__name__}({kind.__name__})", (type(error), kind), home)
        twin = build(both)
        # Attributes of the user's exception, such as custom fields, are copied to the new error.
        for name, value in vars(cause).items():
            vars(twin).setdefault(name, value)
        if isinstance(cause, OSError):  # these are not in its vars()
            for name in ("errno", "strerror", "filename", "filename2"):
                setattr(twin, name, getattr(cause, name))
    except Exception:  # noqa: BLE001 (C layouts that do not mix, or what a user's class forbids)
        return error
    return twin


def text_of(value: object) -> str:
    """Return the text of an error or of an argument, even if its `__str__` raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 (a user's code may raise anything)
        return "<its str() failed>"


def of_end(error: DrayError) -> BaseException:
    """Return the error to raise in this thread because the session has ended.

    In a daemon thread that still runs while the program ends, it is SystemExit, which Python
    ignores silently: without dray such a thread just stops.
    """
    return SystemExit() if is_left_over(threading.current_thread()) else error


def is_left_over(thread: threading.Thread) -> bool:
    """Return whether a thread is a daemon thread that still runs while the program ends."""
    return thread.daemon and not threading.main_thread().is_alive()
