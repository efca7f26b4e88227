"""The error of a task or an actor's method that raised; programs find it in `dray.errors`."""

from __future__ import annotations

import functools
import re

from dray.errors.base import DrayError, RemoteTraceback, mixed_with, text_of


class TaskError(DrayError):
    """A task or an actor's method raised.

    What `get` raises is also an instance of what the user's code raised, so `except ValueError`
    catches a task's ValueError; its cause is the traceback in the worker.

    Attributes:
        cause: Exception of the user's code.
        where: Task, or method and actor, with its process and node.
        remote_traceback: The traceback there, as text.
        function_name: The task's name, or the method's with its class, as text.
        pid: The process; None if that is not known.
        ip: The node's address.
    """

    # Not properties: what the user's exception has under these names shall be found.
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
        """The traceback in the worker, as text, under the name that Ray has for it."""
        return self.remote_traceback

    def as_instanceof_cause(self) -> TaskError:
        """Return this error as an instance of the user's exception type too."""
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
    """Return what is said of one thing in where an error was raised; "" if nothing is."""
    found = _WHERE.fullmatch(where)
    said = (found[part] or "") if found else ""
    if found and part == "name" and found["actor"] and "." not in said:
        return f"{found['actor']}.{said}"
    return said


def raised_in_task(cause: BaseException, where: str, remote_traceback: str) -> TaskError:
    """Return a `TaskError` that is an instance of its cause's type too, where Python allows it."""
    error = TaskError(cause, where, remote_traceback)
    while isinstance(cause, TaskError):  # tasks that waited for one another: the first one counts
        cause = cause.cause
    return mixed_with(
        error, cause, lambda both: both(error.cause, error.where, error.remote_traceback)
    )
