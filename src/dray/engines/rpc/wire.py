"""The message protocol of training workers and fork servers: calls, answers, errors, pickling."""

from __future__ import annotations

import functools
import os
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias

from dray.engines import thread_limits
from dray.engines.rpc import code_names, pickler
from dray.errors import RemoteTraceback, SerializationError, TaskError, raised_in_task, text_of
from dray.interrupts import is_handlers

# Driver -> fork server: FORK, KILL or CANCEL, and the worker's number. FORK carries descriptors and
# says how many; CANCEL says which task or call.
REQUEST = struct.Struct("!cQQ")
FORK, KILL, CANCEL = b"f", b"k", b"c"
# Beside the number of descriptors: the worker must have none of the modules that the server has
# learned, since the driver's environment is not any more what they were imported in.
UNLEARNED = 1 << 8
# Fork server -> driver: STARTED with a pid, EXITED with a status and whether KILL asked for it, or
# FAILED with the error's number.
NOTICE = struct.Struct("!cQq?")
STARTED, EXITED, FAILED = b"s", b"x", b"f"
# Fork server -> worker: which task or call is cancelled.
CANCELLED = struct.Struct("!Q")
# The same with a dispatch in place of a task: which one is not to begin any more.
RECALLED = 1 << 63


class Begin(NamedTuple):
    """First message to a worker: the driver's environment, and what to make there.

    Attributes:
        factory: Makes the actor's object; pickled.
        enter: Puts the worker there, given this message, where the engine has a way of its own.
    """

    environment: dict[str, str]
    cwd: str
    path: list[str]
    factory: bytes = b""
    enter: Callable[[Any], None] | None = None

    @classmethod
    def like_here(
        cls, variables: Mapping[str, str | None], directory: str | None, factory: bytes = b""
    ) -> Begin:
        """Return this process's environment, with other variables and another directory.

        Args:
            variables: Changes of the environment; None is to be unset.
            directory: The working directory; None is this process's.
        """
        environment = {**thread_limits.users_environment(), **variables}
        return cls(
            {name: value for name, value in environment.items() if value is not None},
            directory or working_directory(),
            [*import_path(directory, variables), *sys.path],
            factory,
        )


def working_directory() -> str:
    """Return where this process is; "" if that directory is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def import_path(directory: str | None, variables: Mapping[str, str | None]) -> list[str]:
    """Return where Python is to look first: in a working directory, then as PYTHONPATH says."""
    entries = (variables.get("PYTHONPATH") or "").split(os.pathsep)
    return [entry for entry in (directory, *entries) if entry]


class Call(NamedTuple):
    """Call a method on the main thread and answer under the same number."""

    number: int
    payload: bytes


class Signal(NamedTuple):
    """Call a method on the control thread; no answer."""

    payload: bytes


class Stop(NamedTuple):
    """Finish the calls made so far, then exit."""


class Answer(NamedTuple):
    """The value that a call returned, or the error that it raised, pickled."""

    number: int
    kind: Literal["returned", "raised"]
    payload: bytes


class Message(NamedTuple):
    """A message that an actor pushes: plain values and importable classes."""

    message: Any


# Before what an actor pushes quietly, in place of a pickled `Message`: bytes, or pickled as well.
QUIET, QUIET_PICKLED = b"q", b"p"
# The length before each message, as `multiprocessing` has it, and of one of 2 GiB or more.
LENGTH, _LONG_LENGTH, MOST = struct.Struct("!i"), struct.Struct("!iQ"), 0x7FFFFFFF


class Left(NamedTuple):
    """Last message of a worker: it has done all it was asked, and its process ends now."""


ToWorker: TypeAlias = "Begin | Call | Signal | Stop"
ToDriver: TypeAlias = "Answer | Message | Left"


def framed(data: bytes) -> bytes:
    """Return a message as it goes over the socket, where `multiprocessing` reads it as well."""
    size = len(data)
    return (LENGTH.pack(size) if size <= MOST else _LONG_LENGTH.pack(-1, size)) + data


def dump(value: object, what: str) -> bytes:
    """Pickle a value, functions and classes of `__main__` by value.

    Raises:
        SerializationError: It cannot be pickled; the message names the object that is to blame.
        RuntimeError: Work on a device, of which a tensor is the result, has failed before.
    """
    try:
        return pickler.dumps(value)
    except Exception as error:
        if is_handlers(error) or _is_of_a_device(error):
            raise
        culprit, said = _find_culprit(value, what), text_of(error)
        raise SerializationError(
            f"{what} cannot be sent to another process: {culprit} cannot be pickled ({said}). "
            "Create it inside the function, or pass the values that it is made from."
        ) from error


def _is_of_a_device(error: Exception) -> bool:
    """Return whether it is one of CUDA's, which come to light when somebody reads a result."""
    torch = sys.modules.get("torch")
    names = ("AcceleratorError", "OutOfMemoryError")
    return isinstance(error, tuple(getattr(torch, n) for n in names if hasattr(torch, n)))


def named_arguments(
    args: Sequence[object], kwargs: Mapping[str, object], callee: str
) -> dict[str, object]:
    """Return the arguments of a call by the names that messages have for them."""
    by_place = {f"argument {index} of {callee}": value for index, value in enumerate(args)}
    return by_place | {f"argument {name!r} of {callee}": value for name, value in kwargs.items()}


def load(payload: bytes) -> Any:
    """Unpickle what `dump` made."""
    return pickle.loads(payload)


def _pickles(value: object) -> bool:
    try:
        pickler.dumps(value)
    except Exception as error:
        if is_handlers(error):
            raise
        return False
    return True


def _find_culprit(value: object, path: str, depth: int = 0) -> str:
    """Name the innermost part of a value that does not pickle."""
    if depth < 6:
        try:
            for name, part in _parts(value):
                if not _pickles(part):
                    return _find_culprit(part, f"{path} -> {name}", depth + 1)
        except Exception as error:
            if is_handlers(error):
                raise
    return f"{path} (a {type(value).__module__}.{type(value).__qualname__})"


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a value is made of, by the names that its author would recognise."""
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f"variable {name!r}", cell.cell_contents
        for name in dict.fromkeys(code_names.of_code(value.__code__)):
            if name in value.__globals__:
                yield f"global {name!r}", value.__globals__[name]
        for index, default in enumerate(value.__defaults__ or ()):
            yield f"default argument {index}", default
    elif isinstance(value, dict):
        yield from ((f"key {key!r}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"item {index}", part) for index, part in enumerate(value))
    elif hasattr(value, "func") and hasattr(value, "args"):  # functools.partial
        yield from (("function", value.func), ("arguments", value.args))
        yield "keyword arguments", getattr(value, "keywords", {})
    elif isinstance(value, type) or hasattr(value, "__dict__"):
        yield from ((f"attribute {name!r}", part) for name, part in vars(value).items())


def dump_error(error: BaseException, users: TracebackType | None = None) -> bytes:
    """Pickle an error with its traceback as text; a stand-in where the error does not pickle.

    Args:
        users: The traceback from the user's first frame on, if there is one.
    """
    text = "".join(traceback.format_exception(type(error), error, users or error.__traceback__))
    said = text_of(error)
    stand_in = RuntimeError(f"{type(error).__name__}: {said}")
    pickled = _dump_alike(error, said) or _dump_parts(error) or dump(stand_in, "the error")
    return pickle.dumps((pickled, text), protocol=5)


def with_traceback_of(payload: bytes, error: BaseException) -> bytes:
    """Pickle an error with the traceback of one that `dump_error` has pickled."""
    _, text = pickle.loads(payload)
    return pickle.dumps((dump(error, "the error"), text), protocol=5)


def make_portable(error: Exception) -> None:
    """Have whoever pickles an error do so as `dump_error` would, where its class cannot."""
    if not _dump_alike(error, text_of(error)):
        vars(error)["__reduce_ex__"] = functools.partial(_reduce, _parts_of(error))


def _reduce(parts: _Rebuilt | _Retold, _: int) -> tuple[object, ...]:
    return parts.__reduce__()


def _dump_alike(error: BaseException, said: str) -> bytes:
    """Pickle an error as its class would have it; nothing if what comes back is another one.

    Unpickling calls the class with `args`, which are what its `__init__` gave to `super()`, and
    not always what it takes itself.
    """
    try:
        pickled = dump(error, "the error")
        copy = load(pickled)
        return pickled if isinstance(copy, BaseException) and text_of(copy) == said else b""
    except Exception:  # noqa: BLE001 (a user's exception class may fail in any way)
        return b""


def _dump_parts(error: BaseException) -> bytes:
    """Pickle an error so that its class is not called; nothing if that fails too.

    An attribute that cannot be pickled is None there: without it, a `__getattr__` might fail.
    """
    try:
        pickled = dump(_parts_of(error), "the error")
        load(pickled)
    except Exception:  # noqa: BLE001 (as above)
        return b""
    return pickled


def _parts_of(error: BaseException) -> _Rebuilt | _Retold:
    if isinstance(error, TaskError):  # of a task that this one has waited for
        return _Retold(_parts_of(error.cause), error.where, error.remote_traceback)
    kind = type(error)
    _, args, *state = _builtin_base(kind).__reduce__(error)
    args = tuple(arg if _pickles(arg) else text_of(arg) for arg in args)
    kept = {k: v if _pickles(v) else None for part in state for k, v in part.items()}
    return _Rebuilt(kind, args, kept)


class _Retold(NamedTuple):
    """Pickles as a call of `raised_in_task`."""

    cause: _Rebuilt | _Retold
    where: str
    remote_traceback: str

    def __reduce__(self) -> tuple[object, ...]:
        return raised_in_task, tuple(self)


class _Rebuilt(NamedTuple):
    """Pickles as a call of `_rebuild`."""

    kind: type[BaseException]
    args: tuple[object, ...]
    state: dict[str, object]

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, tuple(self)


def _rebuild(
    kind: type[BaseException], args: tuple[object, ...], state: dict[str, object]
) -> BaseException:
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    base.__setstate__(error, state)
    return error


def _builtin_base(kind: type[BaseException]) -> Any:
    """Return the nearest class that Python itself defines, whose methods ask for nothing more."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def load_error(payload: bytes) -> BaseException:
    """Unpickle an error; its cause is its traceback in the worker."""
    pickled, text = pickle.loads(payload)
    try:
        error = load(pickled)
    except Exception as trouble:  # noqa: BLE001 (its class may not be importable here)
        error = RuntimeError(f"{text.strip().splitlines()[-1]} (cannot be rebuilt here: {trouble})")
    error.__cause__ = RemoteTraceback(text)
    assert isinstance(error, BaseException)
    return error
