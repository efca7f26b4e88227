"""Storages far away that fail, throttle or say nothing: how often, and how long."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import dray.train
from dray.errors import StorageError
from dray.train import Checkpoint, Result
from dray.train.storage.place import RemotePath
from dray.train.storage.remote import retry
from dray.train.storage.run_directory import RunDirectory
from tests.support.train_runs import fit

memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem


def begin_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = mock.Mock(side_effect=OSError("no route to host"))
    changes = ("pipe_file", "put_file", "cp_file", "rm_file", "rm")
    for request in (*changes, "ls", "info", "exists", "cat_file", "find"):
        monkeypatch.setattr(memory, request, outage)


def fit_on_memory(train: Callable[..., object]) -> Result:
    return fit(train, "memory://tests", workers=0, on_mismatch="ignore")


def test_an_end_without_a_storage_hides_nothing(
    run: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written at the end is a warning, whatever else the program raises."""
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "0.2")
    directory = RunDirectory(run)
    directory.storage.open()
    warned: list[str] = []
    directory.warn = warned.append
    directory.record("something")
    with mock.patch.object(memory, "pipe_file", side_effect=OSError("no route to host")):
        directory.storage.close()
    assert len(warned) == 1
    assert re.search(
        r"events.* cannot be written: OSError: no route to host \(\d attempts?", warned[0]
    )


def test_a_function_that_fails_while_the_storage_does_is_the_first_cause(
    run: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "0.1")

    def train() -> None:
        begin_outage(monkeypatch)
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        fit_on_memory(train)
    monkeypatch.undo()


def test_what_a_storage_that_is_gone_has_is_not_denied(
    run: RemotePath, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "0.1")

    def train() -> None:
        dray.train.report({"step": 0}, Checkpoint(sources[0]))
        signal.raise_signal(signal.SIGINT)
        begin_outage(monkeypatch)
        dray.train.report({"step": 1})

    with (
        pytest.warns(match="cannot be written"),
        pytest.raises(KeyboardInterrupt, match=r"name='run'\) to continue from its newest"),
    ):
        fit_on_memory(train)
    with pytest.raises(StorageError) as unread:
        Result.from_path("memory://tests/run")
    assert str(unread.value).count("cannot be read") == 1
    monkeypatch.undo()


def test_a_storage_that_stays_silent_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run has to write at its end takes no further wait; an answer ends that."""
    monkeypatch.setenv("DRAY_STORAGE_RETRY_S", "1")
    ask = mock.Mock(side_effect=OSError("no route to host"))
    for what in ("s3://silent/run/checkpoint", "s3://silent/run/events", "s3://silent/run/.lease"):
        with pytest.raises(StorageError, match="no route to host"):
            retry.persistently(f"{what} cannot be written", ask)
    assert 4 < ask.call_count < 15
    begin = ask.call_count
    with pytest.raises(StorageError, match=r"1 attempt in 0\.0 s"):
        retry.persistently("s3://silent/run/events cannot be written", ask)
    assert ask.call_count == begin + 1
    assert retry.persistently("s3://silent/run cannot be listed", lambda: "there") == "there"
    ask.side_effect = [OSError("no route to host"), "written"]
    assert retry.persistently("s3://silent/run/events cannot be written", ask) == "written"


def test_who_waits_for_an_answer_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [OSError("no route") for _ in range(3)]

    def ask() -> str:
        if errors:
            raise errors.pop()
        return "there"

    monkeypatch.setattr(retry, "_TELL_AFTER_S", 0.02)
    what = "s3://bucket/run cannot be read"
    with mock.patch.object(threading, "Timer"):  # it may be told on the second failure only
        assert retry.persistently(what, ask) == "there"
    assert caplog.messages == [f"{what}: OSError: no route; trying for 60 s"]
    caplog.clear()
    # Of an endpoint that takes a request and says nothing, it is told while it says nothing.
    assert retry.persistently(what, lambda: until(lambda: caplog.messages))
    assert caplog.messages == [f"{what}: no answer yet; trying for 60 s"]


def test_a_server_that_throttles_is_left_alone_as_long_as_it_asks() -> None:
    """As botocore says it, and as s3fs passes that on."""
    throttled: Any = Exception("SlowDown")
    throttled.response = {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "1"}}}
    translated = OSError("slow down")
    translated.__cause__ = throttled
    for error in (throttled, translated):
        ask = mock.Mock(side_effect=[error, "done"])
        began = time.monotonic()
        retry.persistently("s3://bucket/run cannot be written", ask)
        assert time.monotonic() - began >= 1.0


def until(happened: Callable[[], Any]) -> bool:
    deadline = time.monotonic() + 10
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(happened())
