"""TPU slices: which ones a run gets, what it says if there are none, and who else may use them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import dray
from dray.testing import FakeHost, tpu_slice
from dray.train import DataParallelTrainer, RunConfig, ScalingConfig
from tests.support.holding import hold
from tests.support.hosts import numbered

pytestmark = pytest.mark.timeout(60)


def slices(workers: Any, topology: str, kind: str, **options: Any) -> ScalingConfig:
    return ScalingConfig(
        num_workers=workers, use_tpu=True, topology=topology, accelerator_type=kind, **options
    )


def plan(*args: Any, **options: Any) -> Any:
    return DataParallelTrainer(print, scaling_config=slices(*args, **options)).plan()


def test_slices_that_are_not_there(session: Any) -> None:
    session(*(node for name in "ab" for node in tpu_slice("4x4", "TPU-V6E", name=name)))
    larger = plan(8, "4x8", "TPU-V6E")
    assert "1 whole TPU slice v6e-32 of 8 hosts asked, there are 2 v6e-16 of 4 h" in larger.reason
    part = "part of no TPU-V6E slice of topology 4x8, but of one of 4x4 (v6e-16)"
    assert set(larger.nodes.values()) == {part}
    assert "-head" not in str(larger)
    assert larger.advice.endswith("8 needs 1 more whole slice of TPU-V6E of topology 4x8.")
    crowded = plan(8, "4x4", "TPU-V6E", resources_per_worker={"CPU": 100})
    assert (
        "each host of a TPU slice v6e-16 has to offer 100 CPU, and offers 8 CPU" in crowded.reason
    )
    assert crowded.advice == "not one worker fits now; 8 needs 736 more CPU."
    unicorn = ScalingConfig(resources_per_worker={"unicorn": 1})
    assert "-head" not in DataParallelTrainer(print, scaling_config=unicorn).plan().reason
    dray.shutdown()
    session(num_cpus=1)
    none = plan(4, "4x4", "TPU-V6E")
    assert none.nodes == {"this machine": "part of no TPU-V6E slice of topology 4x4"}
    assert "there are none" in none.reason
    assert "leave out use_tpu=True" in none.reason


def test_a_range_of_slices(session: Any) -> None:
    session(*(node for name in "abc" for node in tpu_slice("2x2x2", "TPU-V4", name=name)))
    assert plan((2, 10), "2x2x2", "TPU-V4").num_workers == 6
    holder = hold(resources={"TPU": 4})
    found = plan((2, 10), "2x2x2", "TPU-V4")
    assert found.num_workers == 4
    assert {worker.node for worker in found.workers} == {"b-0", "b-1", "c-0", "c-1"}
    refused = plan(6, "2x2x2", "TPU-V4")
    assert (refused.fits, refused.possible) == (False, True)
    assert refused.advice == (
        "num_workers=4 would fit now; 6 needs 1 more whole slice of TPU-V4 of topology 2x2x2."
    )
    dray.kill(holder)


def test_half_a_slice_is_none(session: Any) -> None:
    session(*tpu_slice("2x2x2", "TPU-V4")[:1])
    found = plan(2, "2x2x2", "TPU-V4")
    assert (found.fits, found.possible) == (False, False)


def test_nobody_shares_a_slice(session: Any, storage: Path) -> None:
    """Though its workers use two of four chips."""
    session(*tpu_slice("2x2x2", "TPU-V4", num_cpus=8))
    scaling = slices(2, "2x2x2", "TPU-V4", resources_per_worker={"TPU": 2})

    class Look(dray.train.UserCallback):
        def after_report(self, *_: Any) -> None:
            found.append(DataParallelTrainer(print, scaling_config=scaling).plan().fits)
            chips.append(dray.available_resources().get("TPU", 0))

    found: list[bool] = []
    chips: list[float] = []
    result = DataParallelTrainer(
        lambda: dray.train.report({"shown": os.environ["TPU_VISIBLE_CHIPS"]}),
        scaling_config=scaling,
        run_config=RunConfig(callbacks=[Look()], storage_path=storage),
    ).fit()
    assert (found, chips) == ([False], [0])
    assert result.metrics == {"shown": "0,1"}
    after = DataParallelTrainer(print, scaling_config=scaling).plan()
    assert after.fits
    assert {worker.devices["TPU"] for worker in after.workers} == {("0", "1")}


def test_hosts_of_four_chips(session: Any) -> None:
    """Eight chips are one large host, or two of four if each worker asks for four."""
    session(*tpu_slice("2x4", "TPU-V6E", chips_per_host=4))
    found = plan(2, "2x4", "TPU-V6E", resources_per_worker={"TPU": 4})
    assert [(worker.node, len(worker.devices["TPU"])) for worker in found.workers] == [
        ("slice-0-0", 4),
        ("slice-0-1", 4),
    ]
    assert not plan(1, "2x4", "TPU-V6E").possible
    with pytest.raises(ValueError, match="must be a multiple of 2"):
        plan(1, "2x4", "TPU-V6E", resources_per_worker={"TPU": 4})
    dray.shutdown()
    session(*tpu_slice("2x4", "TPU-V6E"))
    assert plan(1, "2x4", "TPU-V6E", resources_per_worker={"TPU": 2}).fits


@pytest.mark.parametrize("chips", [None, 2])
def test_slices_of_one_host_need_no_name(session: Any, chips: int | None) -> None:
    """Kubernetes gives them none."""
    hosts = [host for name in "ab" for host in tpu_slice("2x2", "TPU-V6E", name=name)]
    for host in hosts:
        for label in ("ray.io/tpu-slice-name", "ray.io/tpu-worker-id"):
            del host["labels"][label]
        host["resources"] = {"TPU": 4}
    session(*hosts)
    own = {} if chips is None else {"resources_per_worker": {"TPU": chips}}
    found = plan(2, "2x2", "TPU-V6E", **own)
    assert [worker.node for worker in found.workers] == ["a-0", "b-0"]
    assert plan((1, 5), "2x2", "TPU-V6E", **own).num_workers == 2
    holder = hold(resources={"TPU": 1})
    refused = plan(2, "2x2", "TPU-V6E", **own)
    assert "num_workers=1 would fit now; 2 needs 1 more whole slice" in refused.advice
    dray.kill(holder)


def test_a_broken_slice_is_not_taken(session: Any) -> None:
    session(*tpu_slice("4x4", "TPU-V6E", name="broken")[:3], *tpu_slice("4x4", "TPU-V6E", name="b"))
    assert {worker.node for worker in plan(4, "4x4", "TPU-V6E").workers} == {
        f"b-{host}" for host in range(4)
    }


def test_in_this_process_one_host_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program for a slice is debugged on one of its hosts."""
    gke = {
        "TPU_ACCELERATOR_TYPE": "v6e-16",
        "TPU_NAME": "my-slice",
        "TPU_WORKER_ID": "1",
        "TPU_TOPOLOGY": "4x4",
    }
    monkeypatch.setenv("DRAY_ENGINE", "inline")
    with FakeHost(files=numbered("dev/accel{}", 4), environment=gke):
        found = plan(4, "4x4", "TPU-V6E")
        (worker,) = found.workers
        assert len(worker.devices["TPU"]) == 4
        dray.shutdown()
