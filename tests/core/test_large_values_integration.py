"""Large values: read in place, and gone with their last reference."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

import dray
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("core_engine")


@dray.remote
def echo(value: Any = None) -> Any:
    return value


def test_arrays_are_read_in_place_and_cannot_be_written() -> None:
    array = np.arange(1_000_000)
    ref = dray.put(array)
    first, second = dray.get([ref, ref])
    assert np.array_equal(first, array)
    assert not first.flags.writeable
    assert np.shares_memory(first, second)
    assert not np.shares_memory(first, array)
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1

    @dray.remote
    def write(values: Any) -> None:
        values[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        dray.get(write.remote(ref))
    copy = first.copy()
    copy[0] = 5
    assert dray.get(ref)[0] == 0


def test_an_array_lives_on_after_its_reference() -> None:
    ref = dray.put(np.arange(500_000))
    array = dray.get(ref)
    del ref
    gc.collect()
    for i in range(5):  # whose memory would be used again now
        dray.put(np.full(500_000, i))
    assert np.array_equal(array, np.arange(500_000))


def test_arrays_within_objects() -> None:
    value: dict[str, Any] = {
        "a": np.arange(200_000),
        "b": [np.ones((300, 300), dtype=np.float32)],
        "c": "text",
    }
    back = dray.get(echo.remote(value))
    assert np.array_equal(back["a"], value["a"])
    assert np.array_equal(back["b"][0], value["b"][0])
    assert back["c"] == "text"
    assert np.array_equal(dray.get(echo.remote(np.array(["a", None], dtype=object))), ["a", None])


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(300_000, dtype=torch.float32).reshape(3, -1)
    for ref in (dray.put(tensor), echo.remote(tensor)):
        back = dray.get(ref)
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)


def test_what_is_written_to_a_tensor_is_of_that_one_alone() -> None:
    torch = pytest.importorskip("torch")
    ref = dray.put(torch.zeros(100_000))
    first, second = dray.get(ref), dray.get(ref)
    second += 1
    assert not first.any()
    del first
    gc.collect()
    assert second.all()
    assert not dray.get(ref).any()


def test_large_values_go_everywhere() -> None:
    @dray.remote
    def total(*arrays: Any) -> float:
        return float(sum(a.sum() for a in arrays))

    @dray.remote
    class Holder:
        def hold(self, array: Any) -> None:
            self.array = array

        def give(self) -> Any:
            return self.array

    array = np.ones(5_000_000)  # 40 MB
    ref = dray.put(array)
    assert dray.get(total.remote(ref, ref, echo.remote(ref))) == 15_000_000
    holder = Holder.remote()
    dray.get(holder.hold.remote(ref))
    del ref
    assert dray.get(holder.give.remote()).sum() == 5_000_000


def test_references_within_values_keep_their_values() -> None:
    inner = dray.put(np.arange(100_000))
    outer = dray.put({"inner": [inner]})
    del inner
    gc.collect()
    assert dray.get(dray.get(outer)["inner"][0])[-1] == 99_999


def test_a_reference_on_its_way_keeps_its_value(gate: Gate) -> None:
    @dray.remote
    def late(box: list[Any], gate: Gate) -> Any:
        gate.wait()
        return dray.get(box[0])

    ref = late.remote([dray.put("kept")], gate)
    gc.collect()
    gate.open()
    assert dray.get(ref) == "kept"


def test_an_actor_keeps_values_by_their_references() -> None:
    @dray.remote
    class Keeper:
        def keep(self, box: list[Any]) -> None:
            self.box = box

        def give(self) -> Any:
            return self.box

        def read(self) -> Any:
            return dray.get(self.box[0])

    keeper = Keeper.remote()
    dray.get(keeper.keep.remote([dray.put("kept"), echo.remote("also")]))
    gc.collect()
    assert dray.get(keeper.read.remote()) == "kept"
    assert dray.get(dray.get(keeper.give.remote())) == ["kept", "also"]


def test_threads_that_take_and_drop_the_same_references(core_engine: str) -> None:
    @dray.remote(max_concurrency=8)
    class Reader:
        def __init__(self) -> None:
            sys.setswitchinterval(1e-6)

        def keep(self, box: list[dray.ObjectRef]) -> None:
            self.kept = dray.get(box[0])

        def churn(self, box: list[dray.ObjectRef]) -> None:
            for _ in range(300 if core_engine == "process" else 10):
                dray.get(box[0])

        def read(self) -> list[int]:
            return dray.get(self.kept, timeout=PATIENCE_S)

    reader = Reader.remote()
    box = [dray.put([dray.put(i) for i in range(5)])]
    dray.get(reader.keep.remote(box))
    dray.get([reader.churn.remote(box) for _ in range(8)])
    del box
    gc.collect()
    assert dray.get(reader.read.remote()) == [0, 1, 2, 3, 4]
