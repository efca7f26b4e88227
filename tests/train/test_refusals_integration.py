"""Refusals: why a run cannot start, now or ever; what is nearest, and what is no reason."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dray
import dray.testing
from dray.errors import ConfigError, InfeasibleError
from dray.scheduling.requests import Node, Request
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.support.gates import refused_at_once, until
from tests.support.holding import hold
from tests.support.programs import environment, write
from tests.train.test_plan_integration import GPUS, plan


@pytest.mark.parametrize(
    ("scaling", "possible", "reason", "nodes", "advice"),
    [
        (
            {"num_workers": 6, "use_gpu": True, "accelerator_type": "A100"},
            False,
            "do not fit the nodes",
            {"b": "no A100"},
            "num_workers=4 would fit now; 6 needs 2 more GPU of type A100.",
        ),
        (
            {"num_workers": 7, "use_gpu": True},
            False,
            "7 GPU asked, 6 GPU exist",
            {},
            "num_workers=6 would fit now; 7 needs 1 more GPU.",
        ),
        (
            {"num_workers": 1, "use_gpu": True, "accelerator_type": "H100"},
            False,
            "no node offers accelerator_type:H100",
            {"a": "no H100", "b": "no H100"},
            "not one worker fits now; no node has accelerators of type H100.",
        ),
        (
            {"num_workers": 2, "resources_per_worker": {"HPU": 1}},
            False,
            "no node offers HPU",
            {"a": "no HPU", "b": "no HPU"},
            "not one worker fits now; 2 needs 2 more HPU.",
        ),
        (
            {"num_workers": 3, "placement_strategy": "STRICT_SPREAD"},
            False,
            "under strategy STRICT_SPREAD",
            {},
            "num_workers=2 would fit now; 3 do not fit the nodes under STRICT_SPREAD.",
        ),
        (
            {"num_workers": 1, "label_selector": {"zone": "x"}},
            False,
            "no node has the labels zone=x",
            dict.fromkeys("ab", "no label zone, a worker needs zone=x"),
            "not one worker fits now; no node has the labels that you ask for.",
        ),
    ],
)
def test_plans_that_can_never_be(
    session: Any,
    storage: Path,
    scaling: dict[str, Any],
    possible: bool,
    reason: str,
    nodes: dict[str, str],
    advice: str,
) -> None:
    session(*GPUS)
    found = plan(**scaling)
    assert (found.fits, found.possible) == (False, possible)
    assert reason in found.reason
    assert found.nodes == nodes
    assert found.advice == advice
    assert "can never start here" in str(found)
    trainer = DataParallelTrainer(
        print,
        scaling_config=ScalingConfig(**scaling),
        run_config=RunConfig(storage_path=storage),
    )
    assert found.advice in str(refused_at_once(InfeasibleError, trainer.fit))
    assert not storage.exists()


def test_a_machine_without_accelerators(session: Any) -> None:
    """The name of an accelerator is no slip of the pen, whatever else is called much like it."""
    session(num_cpus=2)
    for name, scaling, argument in (
        ("GPU", {"use_gpu": True}, "num_gpus"),
        ("TPU", {"use_tpu": True}, "resources"),
        ("HPU", {"resources_per_worker": {"HPU": 1}}, "resources"),
    ):
        reason = plan(**scaling).reason
        assert f"no node offers {name} (nodes offer CPU, memory). Nearest node" in reason
        leave_out = "use_" if "use_" in str(scaling) else f"'{name}' in resources_per_worker"
        assert f"Ask for no {name} (leave out {leave_out}" in reason
        assert "`dray doctor`" in reason
        assert f"dray.init({argument}=...), for tests." in reason
        assert "did you mean" not in reason
    assert "did you mean" not in plan(use_gpu=True, accelerator_type="A100").reason


@pytest.mark.parametrize(
    ("nodes", "scaling", "advice"),
    [
        ([2], {"num_workers": 2, "each": 4}, "not one worker fits now; 2 needs 6 more CPU."),
        ([4, 3], {"num_workers": 3, "each": 3}, "num_workers=2 would fit now; 3 needs 2 more CPU."),
        ([4, 2], {"num_workers": 1, "each": 5}, "not one worker fits now; 1 needs 1 more CPU."),
        (
            [4, 3],
            {"num_workers": 6, "each": 1, "placement_strategy": "STRICT_PACK"},
            "num_workers=4 would fit now; 6 needs 2 more CPU.",
        ),
        (
            [4, 3],
            {"num_workers": 2, "each": 5, "placement_strategy": "STRICT_SPREAD"},
            "not one worker fits now; 2 needs 3 more CPU.",
        ),
    ],
)
def test_as_much_more_as_is_advised_is_enough(
    session: Any, nodes: list[int], scaling: dict[str, Any], advice: str
) -> None:
    each = scaling["each"]
    asked = {name: value for name, value in scaling.items() if name != "each"}
    session(*({"num_cpus": cpus} for cpus in nodes))
    assert plan(resources_per_worker={"CPU": each}, **asked).advice == advice


def test_less_of_the_right_type_is_proposed(session: Any) -> None:
    session(*GPUS)
    found = plan(num_workers=6, use_gpu=True, accelerator_type="A100")
    assert "or for less per worker (resources_per_worker={'GPU': 0.5})" in found.reason
    half = {"use_gpu": True, "accelerator_type": "A100", "resources_per_worker": {"GPU": 0.5}}
    assert plan(num_workers=6, **half).fits


def test_halves_of_devices_that_are_missing(session: Any) -> None:
    session({"num_gpus": 2})
    two_fifths = {"use_gpu": True, "resources_per_worker": {"GPU": 0.4}}
    found = plan(num_workers=5, **two_fifths)
    assert found.advice == "num_workers=4 would fit now; 5 needs 1 more GPU."


def test_labels_that_no_node_has(session: Any) -> None:
    session(
        {"num_cpus": 4, "labels": {"zone": "east"}},
        {"num_cpus": 8, "labels": {"zone": "west", "tier": "spot"}},
    )
    for selector, said, of_a_node in (
        (
            {"zonee": "east"},
            "zonee=east: none has zonee, they have only tier, zone.",
            "no label zo",
        ),
        (
            {"zone": "mars"},
            "zone=mars: they have zone=east or west.",
            "its zone is east, a worker ",
        ),
        ({"zone": "east", "tier": "spot"}, "no single one has them all.", "no label tier, a worke"),
    ):
        found = plan(label_selector=selector)
        assert said in found.reason
        assert "Ask for other labels (label_selector), or declare more with dr" in found.reason
        assert found.nodes["node-0"].startswith(of_a_node)
        assert found.advice.endswith("; no node has the labels that you ask for.")
    east = plan(num_workers=2, label_selector={"zone": "east"}, resources_per_worker={"CPU": 3})
    assert east.nodes == {"node-1": "its zone is west, a worker needs zone=east"}
    assert east.advice == "num_workers=1 would fit now; 2 needs 2 more CPU."
    assert "resources_per_worker={'CPU': 2}" in east.reason
    dray.shutdown()
    session(num_cpus=2)
    reason = plan(label_selector={"zone": "x"}).reason
    assert "none has zone, they have no labels." in reason
    assert "dray.init(labels=...)" in reason


@pytest.mark.parametrize(
    ("runtime_env", "message"),
    [
        ({"pip": ["x-y-z"]}, "does not have .*: x-y-z"),
        ({"working_dir": "/dev/null/absent"}, "not a directory"),
    ],
)
def test_a_runtime_env_that_cannot_be_is_refused_as_by_fit(
    session: Any, storage: Path, runtime_env: dict[str, Any], message: str
) -> None:
    session(num_cpus=1)
    holder: Any = None
    trainer = DataParallelTrainer(
        print,
        run_config=RunConfig(worker_runtime_env=runtime_env, storage_path=storage),
    )
    for _ in range(2):  # whether it would fit otherwise, or must wait
        for call in (trainer.plan, trainer.fit):
            with pytest.raises(ConfigError, match=message):
                call()
        holder = holder or hold(num_cpus=1)
    dray.kill(holder)


def with_trainer(share: dict[str, float], **scaling: Any) -> Any:
    with pytest.warns(DeprecationWarning, match="trainer_resources"):
        config = ScalingConfig(trainer_resources=share, **scaling)
    return DataParallelTrainer(print, scaling_config=config)


def test_resources_of_the_trainer_that_do_not_fit(session: Any) -> None:
    """What is advised counts for the workers alone, as the controller needs nothing."""
    session({"node_id": "a", "num_cpus": 2})
    beside = with_trainer({"CPU": 1}, num_workers=2).plan()
    assert beside.reason == "The workers would fit, but not together with trainer_resources."
    assert beside.advice == "Leave out trainer_resources (1 CPU): the controller needs nothing."
    assert not beside.possible
    both = with_trainer({"CPU": 1}, num_workers=3)
    with pytest.raises(InfeasibleError) as refused:
        both.fit()
    assert "3 CPU asked, 2 CPU exist" in str(refused.value)
    assert "(resources_per_worker={'CPU': 0.66})" in str(refused.value)
    assert "num_workers=2 would fit now; 3 needs 1 more CPU. Leave out" in str(refused.value)
    assert plan(num_workers=3, resources_per_worker={"CPU": 0.66}).fits


def test_no_node_is_left(session: Any, storage: Path) -> None:
    session({"node_id": "a"})
    dray.testing.kill_node("a")
    found = plan()
    assert (found.fits, found.possible) == (False, False)
    assert "nodes offer nothing" in found.reason
    with pytest.raises(InfeasibleError, match="nodes offer nothing"):
        DataParallelTrainer(print, run_config=RunConfig(storage_path=storage)).fit()


def test_advice_beside_a_selector_for_each_worker(session: Any) -> None:
    session({"node_id": "a", "num_cpus": 2})
    found = plan(num_workers=3, label_selector=[{"ray.io/node-id": "a"}] * 3)
    assert found.advice.startswith(
        "num_workers=2 would fit now with the first 2 of label_selector; 3 needs"
    )


def test_selectors_for_each_worker(session: Any) -> None:
    session(*GPUS)
    found = plan(
        num_workers=2,
        resources_per_worker={"CPU": 17},
        label_selector=[{"ray.io/node-id": "a"}, {"ray.io/node-id": "c"}],
    )
    assert found.nodes == {
        "a": "16 CPU of 16 CPU free, a worker needs 17 CPU",
        "b": "its labels do not match",
    }


@pytest.mark.parametrize(
    ("nodes", "scaling", "share", "where"),
    [
        ([{"num_cpus": 8}, {"num_cpus": 4}], {"num_workers": 4}, {"CPU": 8}, [1, 1, 1, 1]),
        (
            [{"num_cpus": 8, "num_gpus": 1}, {"num_cpus": 8}],
            {"resources_per_worker": {"CPU": 8}},
            {"GPU": 1, "CPU": 1},
            [1],
        ),
        (
            [{"num_cpus": 4}, {"num_cpus": 4}],
            {"num_workers": 2, "placement_strategy": "SPREAD"},
            {"CPU": 4},
            [1, 1],
        ),
        (
            [{"num_cpus": 1}, {"num_cpus": 1}],
            {
                "num_workers": (1, 2),
                "placement_strategy": "SPREAD",
                "resources_per_worker": {"CPU": 0.5},
            },
            {"CPU": 1},
            [1, 1],
        ),
    ],
)
def test_workers_beside_a_share_of_the_controller(
    session: Any,
    nodes: list[dict[str, Any]],
    scaling: dict[str, Any],
    share: dict[str, float],
    where: list[int],
) -> None:
    """What fits only if the controller's share is placed first is no reason to refuse."""
    session(*nodes)
    found = with_trainer(share, **scaling).plan()
    assert found.fits
    assert [w.node for w in found.workers] == [f"node-{index}" for index in where]


def test_nodes_of_ray_that_fit_at_second_thoughts() -> None:
    pytest.importorskip("ray")
    from dray.engines.ray.cluster import lacking

    nodes = [Node(name, "::1", {"CPU": cpus}) for name, cpus in (("a", 8), ("b", 4))]
    assert lacking(Request([*[{"CPU": 1}] * 4, {"CPU": 8}]), nodes) is None
    assert lacking(Request([*[{"CPU": 1}] * 5, {"CPU": 8}]), nodes) is not None


def test_selectors_whose_nodes_overlap(session: Any, storage: Path) -> None:
    """The only way is B for the first worker, though A is free when it is its turn."""
    session(*({"node_id": name, "num_cpus": 1, "labels": {"n": name}} for name in "ABC"))
    overlapping = ScalingConfig(
        num_workers=3, label_selector=[{"n": "in(A,B)"}, {"n": "in(A,C)"}, {"n": "in(A,C)"}]
    )
    trainer = DataParallelTrainer(
        lambda: dray.train.get_context().get_world_size(),
        scaling_config=overlapping,
        run_config=RunConfig(storage_path=storage),
    )
    assert {worker.node for worker in trainer.plan().workers} == {"A", "B", "C"}
    assert trainer.fit().return_value == 3


def test_devices_of_one_node_are_those_that_were_found_free(session: Any) -> None:
    """The controller's share of a device is taken first, as it was when all was found to fit."""
    session({"num_cpus": 8, "num_gpus": 2})
    holder = hold(num_gpus=0.4, num_cpus=0)
    halves = {"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}
    trainer = with_trainer({"GPU": 0.6}, num_workers=2, **halves)
    assert [w.devices for w in trainer.plan().workers] == [{"GPU": ("1",)}] * 2
    assert trainer.fit().error is None
    dray.kill(holder)


def test_a_share_of_the_controller_that_never_fits(session: Any) -> None:
    """The workers alone would only wait; that is no reason for what can never be."""
    session({"node_id": "a", "num_cpus": 2}, {"node_id": "b", "num_cpus": 2})
    three_nodes = with_trainer({"CPU": 1}, num_workers=2, placement_strategy="STRICT_SPREAD")
    assert three_nodes.plan().reason == (
        "The workers would fit, but not together with trainer_resources."
    )
    holders = [hold(num_cpus=2) for _ in range(2)]
    found = three_nodes.plan()
    assert (found.fits, found.possible) == (False, False)
    assert found.reason == (
        "The workers would fit when other work is done, but never together with trainer_resources."
    )
    with pytest.raises(InfeasibleError, match="but never together with trainer_resources"):
        three_nodes.fit()
    possible = with_trainer({"CPU": 1}, num_workers=2).plan()
    assert possible.possible
    assert possible.reason == "2 CPU asked, but other work uses some of it."
    for holder in holders:
        dray.kill(holder)


def test_a_share_of_nothing_is_no_reason(session: Any) -> None:
    session({"num_cpus": 2})
    found = with_trainer({"CPU": 0}, num_workers=3).plan()
    assert found.advice == "num_workers=2 would fit now; 3 needs 1 more CPU."


def test_what_is_left_of_devices_is_no_whole_one(session: Any) -> None:
    session({"node_id": "a", "num_cpus": 4, "num_gpus": 3})
    holders = [hold(num_gpus=0.6, num_cpus=0) for _ in range(3)]
    whole = plan(use_gpu=True)
    assert whole.nodes == {"a": "0 GPU of 3 GPU free, a worker needs 1 GPU"}
    assert whole.advice == "not one worker fits now; 1 needs 1 more GPU."
    halves = plan(num_workers=3, use_gpu=True, resources_per_worker={"GPU": 0.5})
    assert halves.nodes == {"a": "0 GPU of 3 GPU free, a worker needs 0.5 GPU"}
    assert halves.advice == "not one worker fits now; 3 needs 2 more GPU."
    dray.kill(holders.pop())
    until(lambda: dray.available_resources().get("GPU", 0) > 1.7)
    two = plan(num_workers=2, use_gpu=True)
    assert two.advice == "num_workers=1 would fit now; 2 needs 1 more GPU."
    pair = plan(num_workers=1, use_gpu=True, resources_per_worker={"GPU": 2})
    assert pair.nodes == {"a": "1 GPU of 3 GPU free, a worker needs 2 GPU"}
    for holder in holders:
        dray.kill(holder)


@pytest.mark.parametrize("quantity", [1e308, 10**31, float("inf"), float("nan"), -1, "1"])
def test_quantities_that_cannot_be(quantity: Any) -> None:
    for argument in ("resources_per_worker", "trainer_resources"):
        with pytest.raises(ConfigError, match="the quantity of CPU must be"):
            ScalingConfig(**{argument: {"CPU": quantity}})  # type: ignore[arg-type]


def test_any_number_of_workers_is_refused_at_once(session: Any) -> None:
    session({"num_cpus": 2}, {"num_cpus": 2})
    began = time.process_time()
    found = plan(num_workers=100_000)
    assert "100000 CPU asked, 4 CPU exist" in found.reason
    assert found.advice == "num_workers=4 would fit now; 100000 needs 99996 more CPU."
    for workers in (100_001, 10**9, 10**30, (10**9, 10**10)):
        with pytest.raises(ConfigError, match="num_workers must be at most 100000, or a tuple"):
            ScalingConfig(num_workers=workers)
    assert plan(num_workers=(1, 10**30)).num_workers == 4
    assert time.process_time() - began < 3  # some ten times what it takes


def test_nodes_say_which_types_there_are(session: Any, storage: Path) -> None:
    node = {"num_cpus": 2, "num_gpus": 1}
    session({**node, "accelerator_type": "MyGPU"}, {**node, "accelerator_type": "A100"})
    config = RunConfig(storage_path=storage)

    def train() -> str:
        return dray.get_runtime_context().get_node_id()

    def trainer(kind: str) -> DataParallelTrainer:
        scaling = ScalingConfig(use_gpu=True, accelerator_type=kind)
        return DataParallelTrainer(train, scaling_config=scaling, run_config=config)

    assert trainer("MyGPU").fit().return_value == "node-0"
    for kind, meant in (("MyGPU2", "MyGPU"), ("a100", "A100"), ("A10O", "A100")):
        with pytest.raises(InfeasibleError) as refused:
            trainer(kind).fit()
        text = f"no node offers accelerator_type:{kind} (nodes offer CPU, GPU, accelerator_type:A1"
        assert text in str(refused.value)
        assert re.search(rf"did you mean (\S+ or )*{meant}", str(refused.value))
        assert "accelerator_type:MyGPU" in str(trainer(kind).plan())
    with pytest.raises(InfeasibleError) as refused:
        trainer("H100").fit()
    assert "did you mean" not in str(refused.value)


def test_what_is_advised_works_beside_simulated_nodes(session: Any) -> None:
    session({"num_cpus": 2, "node_id": "alone"})
    for scaling in ({"use_gpu": True}, {"num_workers": 3}, {"label_selector": {"a": "b"}}):
        assert "or declare more with dray.init(nodes=...)." in plan(**scaling).reason


@pytest.mark.parametrize("quantity", [1e15, 1e25])
def test_whatever_is_asked_for_is_refused_in_words(session: Any, quantity: float) -> None:
    session(num_cpus=2)
    reason = plan(resources_per_worker={"CPU": quantity}).reason
    assert "Ask for less (resources_per_worker={'CPU': 2})" in reason

    @dray.remote(num_cpus=quantity)
    class Huge:
        pass

    with pytest.raises(InfeasibleError, match="2 CPU exist"):
        Huge.remote()


def test_a_script_that_torchrun_starts_several_times(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = write(tmp_path / "train.py", "fit(lambda: None, workers=0)")
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script))
    variables = environment(tmp_path, TMPDIR=str(tmp_path))
    ended = subprocess.run(
        [sys.executable, *launched], env=variables, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "start it with python, and set ScalingConfig(num_workers=2)" in ended.stderr
    assert not (tmp_path / "run").exists()
