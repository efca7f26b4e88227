"""Memory of batches: a program may write to what it is given, and changes nothing else by it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dray.data
from dray.data.iterator import DataIterator

Batch = dict[str, Any]


class UsesMemoryAgain:
    """Returns the same memory in each batch."""

    def __init__(self) -> None:
        self._memory = np.empty((8, 2, 2))

    def __call__(self, batch: Batch) -> Batch:
        made = self._memory[: len(batch["id"])]
        made[:] = batch["id"][:, None, None]
        return {"x": made}


def yields_memory_again(batch: Batch) -> Iterator[Batch]:
    made = np.empty((1, 2, 2))
    for number in batch["id"]:
        made[:] = number
        yield {"x": made}


class UsesAFrameAgain:
    """Returns the same frame of pandas in each batch."""

    def __init__(self) -> None:
        self._frame = pd.DataFrame({"x": np.zeros(2)})

    def __call__(self, batch: Batch) -> pd.DataFrame:
        self._frame.loc[:, "x"] = batch["id"].astype(float)
        return self._frame


class UsesASeriesAgain:
    """Returns the same column of pandas in each batch."""

    def __init__(self) -> None:
        self._column = pd.Series(np.zeros(2))

    def __call__(self, batch: Batch) -> Batch:
        self._column[:] = batch["id"].astype(float)
        return {"x": self._column}


class UsesAViewAgain:
    """Returns the same memory in each batch, by arrays that may only be read."""

    def __init__(self) -> None:
        self._memory = np.zeros(2)

    def __call__(self, batch: Batch) -> Batch:
        self._memory[:] = batch["id"]
        seen = self._memory.view()
        seen.flags.writeable = False
        return {"x": seen}


class ChangesTheLastFrame:
    """Writes to the frame that it has returned for the batch before."""

    def __init__(self) -> None:
        self._last: pd.DataFrame | None = None

    def __call__(self, batch: Batch) -> pd.DataFrame:
        if self._last is not None:
            self._last.loc[:, "x"] = -1.0
        self._last = pd.DataFrame({"x": batch["id"] * 1.0})
        return self._last


def yields_a_frame_again(batch: Batch) -> Iterator[pd.DataFrame]:
    frame = pd.DataFrame({"x": [0.0]})
    for number in batch["id"]:
        frame.loc[:, "x"] = float(number)
        yield frame


@pytest.mark.parametrize(
    "function",
    [UsesAFrameAgain, UsesASeriesAgain, UsesAViewAgain, ChangesTheLastFrame, yields_a_frame_again],
)
def test_a_function_may_use_frames_and_views_again(function: Any) -> None:
    rows = dray.data.range(6).map_batches(function, batch_size=2)
    assert rows.to_pandas()["x"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("function", [UsesMemoryAgain, yields_memory_again])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_a_function_may_use_its_memory_again(function: Any, batch_size: int) -> None:
    rows = dray.data.range(8).map_batches(function, batch_size=2)
    batches = [batch["x"] for batch in rows.iter_batches(batch_size=batch_size)]
    assert np.concatenate(batches)[:, 1, 1].tolist() == list(range(8))


def _kept_in_a_list(kept: Any, batch: Batch) -> Batch:
    kept.append(batch["id"] * 2.0)
    return {"x": kept[-1]}


def _kept_with_its_batch(kept: Any, batch: Batch) -> Batch:
    made = {"x": batch["id"] * 2.0}
    kept.append(made["x"])
    return made


def _kept_as_a_part(kept: Any, batch: Batch) -> Batch:
    made = batch["id"] * 2.0
    kept.append(made[:])
    return {"x": made}


def _kept_whole(kept: Any, batch: Batch) -> Batch:
    made = {"x": batch["id"] * 2.0}
    kept.append(made)
    return made


def _kept_weakly(kept: Any, batch: Batch) -> Batch:
    made = batch["id"] * 2.0
    kept.append(weakref.ref(made))
    return {"x": made}


def _kept_as_a_tensor(kept: Any, batch: Batch) -> Batch:
    torch = pytest.importorskip("torch")
    kept.append(torch.from_numpy(batch["id"] * 2.0))
    return {"x": kept[-1]}


def _argument(kept: Any, batch: Batch) -> Batch:
    kept.append(batch["id"])
    return {"x": batch["id"]}


@pytest.mark.parametrize(
    "function",
    [
        _kept_in_a_list,
        _kept_with_its_batch,
        _kept_as_a_part,
        _kept_whole,
        _kept_weakly,
        _kept_as_a_tensor,
        _argument,
    ],
)
def test_what_a_function_keeps_stays_as_it_is(function: Callable[[Any, Batch], Batch]) -> None:
    kept: list[Any] = []
    source = pa.table({"id": np.arange(4)})
    rows = dray.data.from_arrow(source).map_batches(lambda batch: function(kept, batch))
    for batch in rows.iter_batches(batch_size=4):
        assert batch["x"].flags.writeable
        batch["x"][:] = -1
    for each in kept:
        array = each() if isinstance(each, weakref.ref) else each
        array = array["x"] if isinstance(array, dict) else array
        assert array is None or -1 not in array.tolist()
    assert source.column("id").to_pylist() == [0, 1, 2, 3]


def test_a_function_may_write_to_its_batch_on_request() -> None:
    def doubled(batch: Batch) -> Batch:
        batch["id"] *= 2
        return batch

    def changed(frame: Any) -> Any:
        frame.iloc[0, 0] = 7
        return frame

    source = dray.data.from_arrow(pa.table({"id": np.arange(2)}))
    rows = source.map_batches(doubled, zero_copy_batch=False)
    assert rows.take_all() == [{"id": 0}, {"id": 2}]
    frames = source.map_batches(changed, batch_format="pandas", zero_copy_batch=False)
    assert frames.take_all() == [{"id": 7}, {"id": 1}]
    with pytest.raises(ValueError, match=r"failed on rows .*read-only \(zero_copy_batch=False"):
        source.map_batches(doubled).take_all()
    assert source.take_all() == [{"id": 0}, {"id": 1}]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dataset_of_hugging_face_stays_as_it_is(batch_size: int, ranks: int) -> None:
    datasets = pytest.importorskip("datasets")
    source = datasets.Dataset.from_dict({"x": [0.0, 1.0, 2.0, 3.0]})
    shard = DataIterator(dray.data.from_huggingface(source), 0, ranks)
    for batch in shard.iter_batches(batch_size=batch_size):
        batch["x"][:] = -1
    assert source.data.column("x").to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 2, 3)])
def test_what_nobody_else_has_is_given_without_a_copy(shape: tuple[int, ...]) -> None:
    places = set()

    def ones(batch: Batch) -> Batch:
        made = np.ones(shape)
        places.add(made.ctypes.data)
        return {"x": made, "id": batch["id"]}

    (batch,) = dray.data.range(4).map_batches(ones, batch_size=4).iter_batches(batch_size=4)
    assert batch["x"].ctypes.data in places
    assert batch["x"].shape == shape
    assert batch["x"].flags.writeable
    assert batch["id"].flags.writeable


def test_a_function_may_use_the_memory_of_a_column_again() -> None:
    memory = np.empty(2)

    def doubled(batch: Batch) -> Any:
        return np.multiply(batch["id"], 2, out=memory[: len(batch["id"])])

    rows = dray.data.range(4).map_batches(lambda batch: batch, batch_size=2)
    rows = rows.add_column("x", doubled, batch_format="numpy")
    assert [row["x"] for row in rows.take()] == [0, 2, 4, 6]


def test_no_more_is_made_ahead_than_is_asked_for() -> None:
    third = threading.Event()

    def noted(batch: Batch) -> Batch:
        if batch["id"][0] == 2:
            third.set()
        return batch

    rows = dray.data.range(10).map_batches(noted, batch_size=1)
    batches: Any = iter(rows.iter_batches(batch_size=1, prefetch_batches=1))
    next(batches)
    assert not third.wait(0.2)
    next(batches)
    assert third.wait(60)
    batches.close()


def test_without_room_for_a_thread_rows_are_read_by_who_wants_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    batches = dray.data.range(10).iter_batches(batch_size=4)
    assert [len(batch["id"]) for batch in batches] == [4, 4, 2]
