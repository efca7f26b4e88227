"""The root of all errors of dray; programs find it in `dray.errors`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E", bound="DrayError")


class DrayError(Exception):
    """The root of dray's errors: catching it catches them all.

    Example:
        >>> import dray.exceptions
        >>> try:
        ...     dray.get("no reference")
        ... except dray.exceptions.RayError as error:
        ...     print(type(error).__name__)
        ArgumentTypeError
    """

    __module__ = "dray.errors"  # where programs find it

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith(f"{DrayError.__module__}."):  # a file beside this one
            cls.__module__ = DrayError.__module__


class RemoteTraceback(Exception):
    """The cause of an error that crossed a process boundary: its traceback there, as text."""

    __module__ = "dray.errors"  # where programs find it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text.rstrip()}\n"


def mixed_with(error: E, cause: BaseException, build: Callable[[type[E]], E]) -> E:
    """Return an error of a type that is both errors', with what the cause carries.

    Args:
        error: Exception to raise; returned as it is where Python cannot mix the types.
        cause: The user's exception.
        build: Makes the new error from its type.
    """
    kind = type(cause)
    if not isinstance(cause, Exception) or isinstance(cause, StopIteration | StopAsyncIteration):
        return error  # who iterates, or awaits, would take it for an end
    try:
        home: dict[str, object] = {"__module__": type(error).__module__}
        group: Any = cause if hasattr(cause, "split") else None  # made by `__new__`, of its parts
        if group is not None:
            home["__new__"] = lambda both, *_, **__: kind.__new__(
                both, group.message, group.exceptions
            )
        both = type(f"{type(error).__name__}({kind.__name__})", (type(error), kind), home)
        twin = build(both)
        # What the user's type carries (errno, custom fields) stays reachable on the error.
        for name, value in vars(cause).items():
            vars(twin).setdefault(name, value)
        if isinstance(cause, OSError):  # it keeps these outside of its vars
            for name in ("errno", "strerror", "filename", "filename2"):
                setattr(twin, name, getattr(cause, name))
    except Exception:  # noqa: BLE001 (C layouts that do not mix, or what a user's class forbids)
        return error
    return twin


def text_of(value: object) -> str:
    """Return what an error, or one of its arguments, says; a user's class may fail to say it."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 (a user's code may raise anything)
        return "<its str() failed>"


def of_end(error: DrayError) -> BaseException:
    """Return the error of a session that has ended, for the thread that needs it.

    For a daemon thread that goes on as the program ends it is SystemExit, which Python passes over
    in silence: without dray such a thread just stops.
    """
    return SystemExit() if is_left_over(threading.current_thread()) else error


def is_left_over(thread: threading.Thread) -> bool:
    """Return whether a thread goes on only until the program has ended."""
    return thread.daemon and not threading.main_thread().is_alive()
