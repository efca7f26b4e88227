"""Nodes that are about to be taken away: what train functions learn of them, and can save."""

from __future__ import annotations

import json
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.testing
import dray.train
from dray.errors import (
    ConfigError,
    NotInTrainingError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)
from dray.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    PreemptionInfo,
    RunConfig,
    ScalingConfig,
    UserCallback,
)


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


def fit(
    storage: Path,
    callback: TakeAway,
    function: Any = save_when_told,
    *,
    allows: Any = (),
    **scaling: Any,
) -> Any:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(
            storage_path=storage, callbacks=[callback], failure_config=FailureConfig(**dict(allows))
        ),
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
    allows = {"max_preemption_failures": 0}
    with pytest.raises(
        PreemptionError, match=r"nodes whose .* \(two-0\), and ranks 0, 1, 2, 3"
    ) as e:
        fit(storage, TakeAway("two-0", None), num_workers=4, allows=allows, **scaling)
    both: list[PreemptionError] = [e.value, pickle.loads(pickle.dumps(e.value))]
    for error in both:
        assert isinstance(error, TrainingFailedError)
        assert error.preemption_info == PreemptionInfo(None, {"two-0": [0, 1, 2, 3]})
        assert not error.drain_timed_out
        assert "FailureConfig(max_preemption_failures=...)" in str(error)
    assert isinstance(e.value.__cause__, WorkerGroupError)


def save_without_the_others() -> Any:
    """Report a checkpoint of the ranks that stay, once the others are gone; return its files."""
    train, rank = dray.train, dray.train.get_context().get_world_rank()
    if checkpoint := train.get_checkpoint():
        return sorted(path.name for path in Path(checkpoint.path).glob("of-*"))
    train.report({"told": None})
    while (info := train.get_preemption_info()) is None:
        pass
    train.report({"told": rank})
    if rank in info.preempted_ranks:
        threading.Event().wait()
    train.get_preemption_info()  # returns once they are gone
    with train.checkpoint_dir() as directory:
        Path(directory, f"of-{rank}").touch()
        train.report({"told": "saved"}, checkpoint=Checkpoint.from_directory(directory))
    return None


class TakeAwayUnsaved(TakeAway):
    """Takes the node away once every rank knows of it."""

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        self.told.append([each["told"] for each in metrics])
        if metrics[0]["told"] is None:
            dray.testing.drain_node(self.node_id, self.deadline_s)
        elif checkpoint is None:
            dray.testing.kill_node(self.node_id)


def wait_on_the_first_node() -> Any:
    """Wait for ever where rank 0 is on node a; return where it is elsewhere."""
    where = dray.get_runtime_context().get_node_id()
    where = dray.train.collective.broadcast_from_rank_zero(where)
    if where == "a":
        dray.train.report({"told": where})
        threading.Event().wait()
    return where


def test_ranks_that_stay_save_without_those_that_are_gone(session: Any, storage: Path) -> None:
    session(*({"node_id": name, "num_cpus": 2} for name in "abc"))
    callback = TakeAwayUnsaved("b", deadline_s=60)
    relaxed = {"relax_collectives_on_preemption": True}
    result = fit(storage, callback, save_without_the_others, allows=relaxed, num_workers=4)
    assert result.return_value == ["of-0", "of-1"]
    assert callback.told == [[None] * 4, [0, 1, 2, 3], ["saved"] * 2]


def test_a_run_leaves_a_node_that_was_to_be_gone(session: Any, storage: Path) -> None:
    session(*({"node_id": name, "num_cpus": 1} for name in "abc"))
    callback = TakeAway("a", deadline_s=0)
    options = {"num_workers": 2, "allows": {"preemption_grace_s": 0.1}}
    assert fit(storage, callback, wait_on_the_first_node, **options).return_value == "b"
    dray.shutdown()
    session(*({"node_id": name, "num_cpus": 1} for name in "abc"))
    never = {"num_workers": 2, "allows": {"max_preemption_failures": 0}}
    with pytest.raises(PreemptionError, match="still at work when its time was over") as raised:
        fit(storage, callback, wait_on_the_first_node, **never)
    assert raised.value.drain_timed_out


def test_misuse(session: Any) -> None:
    with pytest.raises(NotInTrainingError, match=r"get_preemption_info\(\) was called outside"):
        dray.train.get_preemption_info()
    session({"node_id": "a"})
    with pytest.raises(ConfigError, match="there is no node 'z'; there are a"):
        dray.testing.drain_node("z")
    with pytest.raises(ConfigError, match="preemption_grace_s must be 0 or more seconds, not -1"):
        FailureConfig(preemption_grace_s=-1)
    with pytest.raises(ConfigError, match="relax_collectives_on_preemption must be True or False"):
        FailureConfig(relax_collectives_on_preemption="yes")  # type: ignore[arg-type]
