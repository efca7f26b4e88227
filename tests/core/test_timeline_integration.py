"""When tasks and calls have run, as `dray.timeline` tells it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

import dray
from tests.support.gates import until


@dray.remote
def nap(seconds: float) -> None:
    time.sleep(seconds)


@dray.remote
def fail() -> None:
    raise ValueError("no")


@dray.remote
class Napper:
    def nap(self, seconds: float) -> None:
        time.sleep(seconds)


@dray.remote
class AsyncNapper:
    async def doze(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_nothing_is_noted_unless_it_is_asked_for(core_engine: str) -> None:
    dray.get(nap.remote(0))
    if core_engine == "ray":  # notes most of it all the same
        until(lambda: bool(dray.timeline()))
        return
    with pytest.warns(UserWarning, match="RAY_PROFILING=1"):
        assert dray.timeline() == []


@pytest.mark.usefixtures("process_engine")
def test_tasks_and_calls_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dray.shutdown()
    monkeypatch.setenv("RAY_PROFILING", "1")
    dray.init(engine="process", num_cpus=2)
    start = time.time()
    napper, dozer = Napper.remote(), AsyncNapper.options(name="dozer").remote()
    dray.get([nap.options(name="short").remote(0.01), napper.nap.remote(0.02)])
    dray.get([dozer.doze.remote(0.03) for _ in range(2)])
    with pytest.raises(ValueError, match="no"):
        dray.get(fail.remote())
    events = dray.timeline()
    assert events is not None
    lasted_s = {event["name"]: event["dur"] / 1e6 for event in events}
    assert sorted(event["name"] for event in events) == [
        *("AsyncNapper.doze", "AsyncNapper.doze", "Napper.nap", "fail", "nap")
    ]
    assert "task::short" in {event["cat"] for event in events}
    assert lasted_s["nap"] >= 0.01
    assert lasted_s["Napper.nap"] >= 0.02
    assert lasted_s["AsyncNapper.doze"] >= 0.03
    for event in events:
        assert start <= event["ts"] / 1e6 <= (event["ts"] + event["dur"]) / 1e6 <= time.time()
    assert len({event["tid"] for event in events}) >= 3
    assert dray.timeline(tmp_path / "events.json") is None
    assert json.loads((tmp_path / "events.json").read_text()) == events
