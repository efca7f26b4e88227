"""TPUs: what is found on made-up hosts, and what processes are shown of it."""

from __future__ import annotations

import pytest

from dray.accelerators.family import Found
from dray.accelerators.vendors.tpu import Tpu
from dray.testing import FakeHost
from tests.support.hosts import found, nothing, numbered

GKE = {
    "TPU_ACCELERATOR_TYPE": "v4-16",
    "TPU_NAME": "my-slice",
    "TPU_WORKER_ID": "0",
    "TPU_TOPOLOGY": "2x2x2",
}


@pytest.fixture(autouse=True)
def _no_gke(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset what may be set where the tests run."""
    for name in (*GKE, "TPU_VISIBLE_CHIPS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the made-up server, which is a thread of a machine that may be busy."""
    monkeypatch.setattr("dray.accelerators.vendors.tpu._METADATA_TIMEOUT_S", 30)


@pytest.mark.parametrize("count", [1, 4])
def test_tpu_chips_are_device_files(count: int) -> None:
    answer = found(Tpu(), files=numbered("dev/accel{}", count))
    assert (answer.count, answer.type, answer.resources, answer.labels) == (count, None, {}, {})


def test_the_directory_of_other_drivers_is_no_tpu() -> None:
    assert nothing(Tpu(), directories=["dev/accel"])
    assert nothing(Tpu(), files={"dev/accel/accel0": ""})  # an NPU of AMD or Intel


@pytest.mark.parametrize(("vendor", "count"), [("0x1ae0", 2), ("0x1002", 0)])
def test_the_vendor_of_device_files_counts_where_it_is_known(vendor: str, count: int) -> None:
    files = {
        **numbered("dev/accel{}", 2),
        **numbered("sys/class/accel/accel{}/device/vendor", 2, vendor),
    }
    with FakeHost(files=files):
        answer = Tpu().find()
    assert (answer.count if answer else 0) == count


def vfio(*vendors: str | None, first: int = 0) -> dict[str, str]:
    """The files of groups whose device has these vendors; None is one that sysfs lacks."""
    groups = {f"dev/vfio/{first + i}": "" for i in range(len(vendors))}
    told = {
        f"sys/kernel/iommu_groups/{first + i}/devices/0000:00:0{i}.0/vendor": f"{vendor}\n"
        for i, vendor in enumerate(vendors)
        if vendor is not None
    }
    return {"dev/vfio/vfio": "", "dev/vfio/1x": "", **groups, **told}


@pytest.mark.parametrize(
    ("vendors", "count"),
    [
        (["0x1ae0"] * 4, 4),
        (["0x1AE0"], 1),
        (["0x15b3"], 0),  # BlueField-3 beside NVIDIA GPUs
        (["0x15b3", "0x1ae0", None], 1),
        ([None, None], 0),
        (["0x1ae\N{DIGIT ZERO}\N{SNOWMAN}"], 0),
    ],
)
def test_vfio_groups_count_if_they_are_googles(vendors: list[str | None], count: int) -> None:
    with FakeHost(files=vfio(*vendors)):
        answer = Tpu().find()
    assert (answer.count if answer else 0) == count


def test_chips_count_from_0_whatever_their_groups_are_called() -> None:
    answer = found(Tpu(), files=vfio(*["0x1ae0"] * 8, first=1))
    assert answer.count == 8
    assert Tpu().show(["0"], {}, answer.count)["TPU_VISIBLE_CHIPS"] == "0"


@pytest.mark.parametrize(
    ("pod", "kind"),
    [
        *(("v2-8", "TPU-V2"), ("v3-8", "TPU-V3"), ("v4-16", "TPU-V4"), ("v5p-8", "TPU-V5P")),
        *(("v5litepod-16", "TPU-V5LITEPOD"), ("v6e-8", "TPU-V6E"), ("V6E-8", "TPU-V6E")),
        *(("v7x-16", "TPU-V7X"), ("tpu7x-16", "TPU-V7X")),
        *((bad, None) for bad in ("not-a-valid-version", "vNOTVALID-8", "16", "", "v4")),
        *((bad, None) for bad in ("v-8", "tpu-8", "v4-", "v4-16-1")),
    ],
)
def test_the_type_of_a_tpu(pod: str, kind: str | None) -> None:
    files = numbered("dev/accel{}", 4)
    gke = found(Tpu(), files=files, environment={"TPU_ACCELERATOR_TYPE": pod})
    gce = found(Tpu(), files=files, metadata={"accelerator-type": pod})
    assert (gke.type, gce.type) == (kind, kind)


def test_gke_tells_of_a_slice() -> None:
    answer = found(Tpu(), files=numbered("dev/accel{}", 4), environment=GKE)
    assert answer == Found(
        count=4,
        type="TPU-V4",
        resources={"my-slice": 1, "TPU-v4-16-head": 1},
        labels={
            "ray.io/tpu-slice-name": "my-slice",
            "ray.io/tpu-worker-id": "0",
            "ray.io/tpu-topology": "2x2x2",
            "ray.io/tpu-pod-type": "v4-16",
        },
    )


def test_the_metadata_server_tells_of_a_slice() -> None:
    answer = found(
        Tpu(),
        files=numbered("dev/accel{}", 4),
        metadata={
            "accelerator-type": "tpu7x-16",
            "instance-id": "gce-slice",
            "agent-worker-number": "1",
            "tpu-env": "ZONE: 'us-a'\nTOPOLOGY: '2x2x2'\nOTHER_TOPOLOGY: 'x'\n",
        },
    )
    assert answer.resources == {"gce-slice": 1}  # the head is worker 0 alone
    assert answer.labels == {
        "ray.io/tpu-slice-name": "gce-slice",
        "ray.io/tpu-worker-id": "1",
        "ray.io/tpu-topology": "2x2x2",
        "ray.io/tpu-pod-type": "v7x-16",
    }


def test_gke_goes_before_the_metadata_server() -> None:
    answer = found(
        Tpu(),
        files=numbered("dev/accel{}", 4),
        environment={"TPU_NAME": "gke"},
        metadata={"instance-id": "gce", "accelerator-type": "v4-8", "agent-worker-number": "0"},
    )
    assert answer.resources == {"gke": 1, "TPU-v4-8-head": 1}


@pytest.mark.parametrize("missing", ["TPU_NAME", "TPU_WORKER_ID", "TPU_ACCELERATOR_TYPE"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_slice_has_resources_only_if_all_is_known(missing: str, value: str | None) -> None:
    files = numbered("dev/accel{}", 4)
    answer = found(Tpu(), files=files, environment={**GKE, missing: value})
    assert answer.resources == {}
    assert len(answer.labels) == 3


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:x", "", "a..b", "[::1"])
def test_without_a_metadata_server_the_chips_are_found_all_the_same(address: str) -> None:
    answer = found(
        Tpu(), files=numbered("dev/accel{}", 4), environment={"GCE_METADATA_HOST": address}
    )
    assert answer == Found(count=4)


UNSET = dict.fromkeys(("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_HOST_BOUNDS"))


def shown_chips(ids: str, count: int, **environ: str) -> tuple[str | None, ...]:
    """The chips, the bounds of chips, and those of hosts; all three are there in any case."""
    shown = Tpu().show(ids.split(",") if ids else [], environ, count)
    assert shown.keys() == UNSET.keys()
    return tuple(shown[name] for name in UNSET)


def test_what_a_process_is_shown_of_tpus() -> None:
    assert shown_chips("2", 4) == ("2", "1,1,1", "1,1,1")
    assert shown_chips("3,2", 4) == ("2,3", "1,2,1", "1,1,1")
    assert shown_chips("0,1,2,3", 8) == ("0,1,2,3", None, None)
    assert shown_chips("0,10,2,1", 16) == ("0,1,2,10", None, None)
    assert shown_chips("", 4) == ("", None, None)


@pytest.mark.parametrize(("ids", "count"), [("0", 1), ("0,1,2,3", 4), ("0,1,2,3,4,5,6,7", 8)])
def test_a_process_with_all_chips_has_no_variable(ids: str, count: int) -> None:
    assert shown_chips(ids, count) == (None, None, None)


def test_all_chips_that_a_node_is_limited_to_are_not_all_chips() -> None:
    limits = {"TPU_VISIBLE_CHIPS": "4,5,6,7"}
    assert shown_chips("4,5,6,7", 4, **limits) == ("4,5,6,7", None, None)
    assert shown_chips("4", 1, TPU_VISIBLE_CHIPS="4") == ("4", "1,1,1", "1,1,1")


def test_bounds_that_are_stale_go_and_others_stay() -> None:
    stale = {"TPU_CHIPS_PER_HOST_BOUNDS": "1,2,1", "TPU_HOST_BOUNDS": "1,1,1"}
    assert shown_chips("0,1,2,3", 8, **stale) == ("0,1,2,3", None, None)
    assert shown_chips("0,1,2,3", 4, **stale) == (None, None, None)
    given = {"TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_HOST_BOUNDS": "1,1,2"}
    assert shown_chips("0,1,2,3", 4, **given) == (None, "2,2,1", "1,1,2")
    assert shown_chips("0", 4, **given) == ("0", "1,1,1", "1,1,1")
