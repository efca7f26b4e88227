"""Bars of `ray.experimental.tqdm_ray`, and other names of Ray that programs find aside."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import dray
import dray.util.state

ray: Any = dray


def test_tasks_share_a_bar_and_have_their_own(
    process_engine: None, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")

    @dray.remote
    def work(bar: Any) -> int:
        dray.get(bar.update.remote(1))
        return sum(ray.experimental.tqdm_ray.tqdm(range(3), desc="its own", flush_interval_s=0))

    bar = dray.remote(ray.experimental.tqdm_ray.tqdm).remote(None, "of all", 4, "parts")
    assert dray.get([work.remote(bar) for _ in range(4)]) == [3] * 4
    dray.get([bar.refresh.remote(), bar.set_description.remote("ended"), bar.close.remote()])
    dray.shutdown()  # after which all that was printed is there
    shown = capsys.readouterr().err
    assert "ended: 100%" in shown
    assert "4/4" in shown
    assert "its own: 100%" in shown


def test_names_that_programs_take_from_inside() -> None:
    assert ray._raylet.ObjectRef is dray.ObjectRef
    state = import_module("dray.experimental.state.api")
    assert state.list_actors is dray.util.state.list_actors
