"""The error of a task or an actor's method that raised; it is public in `dray.errors`."""

from __future__ import annotations

import functools
import re

from dray.errors.base import DrayError, RemoteTraceback, mixed_with, text_of


class TaskError(DrayError):
    """A task or an actor's method raised.

    The error that `get` raises is also an instance of the type of the user's exception, so
    `except ValueError` catches a task's ValueError. Its `__cause__` is the worker's traceback.

    Attributes:
        cause: The exception of the user's code.
        where: The task, or the method and its actor, with the process and the node.
        remote_traceback: The traceback in the worker, as text.
        function_name: Name of the task, or of the class and the method.
        pid: The process; None if it is unknown.
        ip: Address of the node.
    """

    # Not properties, because attributes of the user's exception with these names take precedence.
    function_name = functools.cached_property(lambda self: _part_of(self.where, "name"))
    pid = functools.cached_property(lambda self: int(_part_of(self.where, "pid") or 0) or None)
    ip = functools.cached_property(lambda self: _part_of(self.where, "ip") or "127.0.0.1")

    def __init__(self, cause: BaseException, where: str, remote_traceback: str) -> None:
        Exception.__init__(self, f"{where} raised {type(cause).__name__}: {text_of(cause)}")
        self.cause = cause
        self.where = where
        self.remote_traceback = remote_traceback
        self.__cause__ = RemoteTraceback(remote_traceback)

    def __str__(self) -> str:
        return f"{self.where} raised {type(self.cause).__name__}: {text_of(self.cause)}"

    @property
    def traceback_str(self) -> str:
        """The traceback in the worker, as text, under Ray's name for it."""
        return self.remote_traceback

    def as_instanceof_cause(self) -> TaskError:
        """Return this error as an error that is also an instance of the user's exception type."""
        return raised_in_task(self.cause, self.where, self.remote_traceback)

    make_dual_exception_instance = as_instanceof_cause

    def __reduce__(self) -> tuple[object, ...]:
        return (raised_in_task, (self.cause, self.where, self.remote_traceback))


# "task f (pid 1, node n)", "method m of actor A (pid 1, node n)", "task f (pid=1, ip=10.0.0.1)".
_WHERE = re.compile(
    r"(?:task|(?:actor )?method) (?P<name>.+?)(?: of actor (?P<actor>.+?))?"
    r"(?: \(pid[ =](?P<pid>\d+)(?:, ip=(?P<ip>[^,)]+))?.*\))?"
)


def _part_of(where: str, part: str) -> str:
    """Return one part of a text such as those above; "" if the text does not have it."""
    found = _WHERE.fullmatch(where)
    said = (found[part] or "") if found else ""
    if found and part == "name" and found["actor"] and "." not in said:
        return f"{found['actor']}.{said}"
    return said


def raised_in_task(cause: BaseException, where: str, remote_traceback: str) -> TaskError:
    """Return a `TaskError` that is also an instance of its cause's type, if Python allows it."""
    error = TaskError(cause, where, remote_traceback)
    while isinstance(cause, TaskError):  # if a task failed because of another, the first counts
        cause = cause.cause
    return mixed_with(
        error, cause, lambda both: both(error.cause, error.where, error.remote_traceback)
    )
