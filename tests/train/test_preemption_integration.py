"""Nodes that are about to be taken away: what train functions learn of them, and can save."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.testing
import dray.train
from dray.errors import ConfigError, NotInTrainingError
from dray.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback


def save_when_told() -> Any:
    """Report a checkpoint of what is known as a node is about to go; return what it holds."""
    train = dray.train
    if checkpoint := train.get_checkpoint():
        return json.loads(Path(checkpoint.path, "info.json").read_text())
    train.report({"told": train.get_preemption_info()})
    while (info := train.get_preemption_info()) is None:
        pass
    with train.checkpoint_dir() as directory:
        told = [info.deadline_ms, info.preempted_node_ids, info.preempted_ranks]
        Path(directory, "info.json").write_text(json.dumps(told))
        train.report({"told": told}, checkpoint=Checkpoint.from_directory(directory))
    threading.Event().wait()  # until its end


class TakeAway(UserCallback):
    """Announces that a node goes after the first report, and takes it away after the next one."""

    def __init__(self, node_id: str, deadline_s: float | None) -> None:
        self.node_id = node_id
        self.deadline_s = deadline_s
        self.told: list[Any] = []

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        self.told.append([each["told"] for each in metrics])
        if checkpoint is None:
            dray.testing.drain_node(self.node_id, self.deadline_s)
        else:
            dray.testing.kill_node(self.node_id)


def fit(storage: Path, callback: TakeAway, **scaling: Any) -> Any:
    return DataParallelTrainer(
        save_when_told,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(storage_path=storage, callbacks=[callback]),
    ).fit()


def test_a_function_saves_before_its_node_is_taken_away(
    session: Any,
    storage: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAY_PROGRESS", "1")
    session(*({"node_id": name, "num_cpus": 2} for name in "abc"))
    callback, before = TakeAway("b", deadline_s=60), time.time()
    result = fit(storage, callback, num_workers=4)
    deadline_ms, nodes, ranks = result.return_value
    assert (nodes, ranks) == (["b"], [2, 3])
    assert before < deadline_ms / 1000 - 60 < time.time()
    assert callback.told == [[None] * 4, [[deadline_ms, nodes, ranks]] * 4]
    warned = r"node b is to be taken away in \d+ s, and ranks 2 and 3 with it"
    assert re.search(warned, capfd.readouterr().err)


def test_a_slice_goes_as_one(session: Any, storage: Path) -> None:
    slices = [dray.testing.tpu_slice("4x4", "TPU-V6E", name=name) for name in ("one", "two")]
    session(*slices[0], *slices[1])
    scaling = {"use_tpu": True, "topology": "4x4", "accelerator_type": "TPU-V6E"}
    callback = TakeAway("one-1", deadline_s=None)
    told = fit(storage, callback, num_workers=4, **scaling).return_value
    assert told == [None, ["one-1"], [0, 1, 2, 3]]


def test_misuse(session: Any) -> None:
    with pytest.raises(NotInTrainingError, match=r"get_preemption_info\(\) was called outside"):
        dray.train.get_preemption_info()
    session({"node_id": "a"})
    with pytest.raises(ConfigError, match="there is no node 'z'; there are a"):
        dray.testing.drain_node("z")
