"""Errors keep their type on the way to the driver, however their class is made."""

from __future__ import annotations

import io
import threading
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.engines.rpc import wire
from dray.errors import TaskError
from dray.train import DataParallelTrainer, RunConfig, WorkerGroupError


class QuotaError(Exception):
    def __init__(self, code: int, *, user: str) -> None:
        super().__init__(f"{user} is over quota")
        self.code = code


class CodeError(Exception):
    """Unpickling calls it with its own message, which it would take for a code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"failed with {code}")
        self.code = code


class MadeError(Exception):
    def __new__(cls, code: int, user: str) -> MadeError:
        return super().__new__(cls)

    def __init__(self, code: int, user: str) -> None:
        self.code = code


class LockedError(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.code = 7
        self.lock: threading.Lock | None = threading.Lock()


class FileError(OSError):
    def __init__(self, code: int, *, path: str) -> None:
        super().__init__(2, "not there", path)
        self.code = code


class SilentError(Exception):
    code = 7

    def __str__(self) -> str:
        raise AttributeError("no text")

    __repr__ = __str__


class Answer(io.BytesIO):
    """An open connection: it cannot be pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a connection cannot be pickled")


def http_error() -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://host", 7, "no", Message(), Answer())


def made_error() -> MadeError:
    return MadeError(7, "me")


ERRORS: list[Any] = [
    lambda: QuotaError(7, user="me"),
    lambda: CodeError(7),
    made_error,
    LockedError,
    lambda: FileError(7, path="/x"),
    SilentError,
    http_error,
]


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except AttributeError:
        return ""


@pytest.mark.parametrize("make", ERRORS)
def test_an_error_arrives_as_what_it_is(make: Any) -> None:
    error = make()
    arrived = wire.load_error(wire.dump_error(error))
    assert type(arrived) is type(error)
    assert text_of(arrived) == text_of(error)
    assert arrived.args == error.args
    assert getattr(arrived, "code", None) == 7
    assert type(error).__name__ in str(arrived.__cause__)


def test_what_cannot_be_pickled_is_missing() -> None:
    arrived = wire.load_error(wire.dump_error(LockedError()))
    assert isinstance(arrived, LockedError)
    assert arrived.lock is None
    (shown,) = wire.load_error(wire.dump_error(ValueError(threading.Lock()))).args
    assert "lock" in shown


def test_the_fields_of_a_builtin_error_arrive() -> None:
    arrived = wire.load_error(wire.dump_error(FileError(7, path="/x")))
    assert isinstance(arrived, OSError)
    assert (arrived.errno, arrived.strerror, arrived.filename) == (2, "not there", "/x")


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("make", [lambda: QuotaError(7, user="me"), http_error])
def test_a_failed_run_is_caught_by_its_errors_type(make: Any, tmp_path: Path) -> None:
    def train() -> None:
        raise make()

    with pytest.raises(type(make())) as caught:
        DataParallelTrainer(train, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert isinstance(caught.value, WorkerGroupError)


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("make", [e for e in ERRORS if e is not made_error])
def test_a_failed_task_is_caught_by_its_errors_type(make: Any) -> None:
    @dray.remote
    def fail() -> None:
        raise make()

    with pytest.raises(type(make())) as caught:
        dray.get(fail.remote())
    assert isinstance(caught.value, TaskError)
    assert getattr(caught.value.cause, "code", None) == 7


class OfAFailedKernel:
    """Stands for a tensor whose values CUDA could not calculate, as it tells when they are read."""

    def __reduce__(self) -> Any:
        torch = pytest.importorskip("torch")
        kind = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)
        raise kind("CUDA error: device-side assert triggered")


def test_work_on_a_device_that_fails_after_the_function_is_its_error(engine: str) -> None:
    pytest.importorskip("torch")

    @dray.remote
    def failing() -> list[OfAFailedKernel]:
        return [OfAFailedKernel()]

    with pytest.raises(TaskError, match="CUDA error: device-side assert") as caught:
        dray.get(failing.remote())
    if engine != "ray":  # which takes it for a value that cannot be pickled
        assert isinstance(caught.value, RuntimeError)
        assert "cannot be" not in str(caught.value)
