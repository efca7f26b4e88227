"""The pool of `multiprocessing` on actors, and joblib's backend on it."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from dray.errors import ActorError, ConfigError, SerializationError
from dray.util.multiprocessing import Pool, TimeoutError
from tests.support.gates import PATIENCE_S, Gate

pytestmark = pytest.mark.usefixtures("core_engine")


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(2) as two:
        yield two


def root_of(square: int) -> float:
    if square < 0:
        raise ValueError(f"no root of {square}")
    return square**0.5


def add(a: int, b: int = 0) -> int:
    return a + b


def sum_of(array: Any, more: Any) -> float:
    return float(array.sum() + more.sum())


def append_line(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(f"{text}\n")


def pid(_: object = None) -> int:
    return os.getpid()


def test_results_come_in_order(pool: Pool) -> None:
    assert pool.map(root_of, (x * x for x in range(20))) == list(range(20))
    assert pool.map(root_of, []) == []
    assert pool.starmap(add, [(1, 2), (3,)], chunksize=1) == [3, 3]
    assert pool.apply(add, (1,), {"b": 5}) == 6
    assert list(pool.imap(root_of, iter([1, 4, 9]), chunksize=2)) == [1, 2, 3]
    assert sorted(pool.imap_unordered(root_of, [1, 4, 9])) == [1, 2, 3]


def test_errors_are_those_of_the_function(pool: Pool) -> None:
    with pytest.raises(ValueError, match=r"^no root of -1$") as raised:
        pool.map(root_of, [1, -1])
    assert type(raised.value) is ValueError
    assert "in root_of" in str(raised.value.__cause__)
    results = pool.imap(root_of, [1, -1, 4])
    assert next(results) == 1
    with pytest.raises(ValueError, match="no root"):
        next(results)
    assert list(results) == [2]
    failed = pool.apply_async(root_of, (-1,))
    failed.wait()
    assert not failed.successful()


def two_then_error() -> Iterator[int]:
    yield 1
    yield 4
    raise KeyError("no more")


def test_what_an_iterable_raises_comes_after_its_results(pool: Pool) -> None:
    results = pool.imap(root_of, two_then_error())
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert list(results) == []
    unpicklable = psutil.Process().open_files
    results = pool.imap(type, [1, unpicklable, unpicklable, "a"])
    assert next(results) is int
    for _ in range(2):
        with pytest.raises(SerializationError):
            next(results)
    assert list(results) == [str]


def test_a_closed_pool_does_what_it_was_given(tmp_path: Path) -> None:
    pool, path = Pool(2), tmp_path / "written"
    results, unordered = pool.imap(add, range(9)), pool.imap_unordered(add, range(9))
    pool.imap(functools.partial(append_line, path), range(5))  # nobody reads these
    pool.close()
    assert (list(results), sorted(unordered)) == (list(range(9)), list(range(9)))
    pool.join()
    assert sorted(path.read_text().split()) == list("01234")


def test_a_slow_first_result_holds_up_no_actor(pool: Pool, gate: Gate) -> None:
    slow = pool.apply_async(gate.pass_through)
    in_order, as_they_come = pool.imap(add, range(3)), pool.imap_unordered(add, range(3))
    assert as_they_come.next(timeout=PATIENCE_S) == 1
    for waited in (slow.get, in_order.next):
        with pytest.raises(TimeoutError):
            waited(timeout=0)
    with pytest.raises(ValueError, match="not ready"):
        slow.successful()
    gate.open()
    slow.wait(PATIENCE_S)
    assert slow.ready()
    assert slow.successful()
    assert list(in_order) == [0, 1, 2]
    assert sorted(as_they_come) == [0, 2]


def test_callbacks_have_returned_when_the_pool_is_joined() -> None:
    pool = Pool(2)
    values: list[object] = []
    pool.map_async(root_of, [1, 4], callback=values.extend)
    pool.apply_async(root_of, (-1,), callback=values.append, error_callback=values.append)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.map(root_of, [1])
    pool.join()
    assert sorted(map(str, values)) == ["1.0", "2.0", "no root of -1"]


def test_actors_begin_with_the_initializer_and_are_made_again(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with Pool(1, initializer=append_line, initargs=(begun, "new"), maxtasksperchild=2) as pool:
        assert len(set(pool.map(pid, range(5), chunksize=1))) == 3
        assert begun.read_text().split() == ["new"] * 3
        with pytest.raises(ActorError):
            pool.apply(os._exit, (1,))
        assert pool.apply(add, (1, 2)) == 3


def test_terminate_ends_all_at_once(gate: Gate) -> None:
    pool = Pool(2, maxtasksperchild=1)
    result = pool.apply_async(gate.pass_through)
    process = psutil.Process(int(gate.heard()[0]))
    endless = pool.imap_unordered(add, itertools.count())
    next(endless)
    pool.terminate()
    pool.join()
    with pytest.raises((ActorError, ConfigError)):
        list(endless)
    with pytest.raises(ActorError):
        result.get()
    process.wait(PATIENCE_S)


@pytest.mark.parametrize("arguments", [{"processes": 0}, {"processes": 99}, {"processes": "2"}])
def test_what_no_pool_can_be_made_of(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="process"):
        Pool(**arguments)


class Counted(np.ndarray[Any, np.dtype[np.float64]]):
    """An array that counts how often it is pickled."""

    pickled = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        type(self).pickled += 1
        return np.asarray(self).__reduce_ex__(protocol)


def test_joblib_stores_a_large_array_once_for_a_call() -> None:
    joblib = pytest.importorskip("joblib")
    from dray.util.joblib import register_ray

    register_ray()
    array: Any = np.zeros(1 << 18).view(Counted)
    with joblib.parallel_config(backend="ray", n_jobs=2), joblib.Parallel(batch_size=1) as run:
        for value in (1, 2):
            array[:] = value
            found = run(joblib.delayed(np.add)(array[:2], 0) for _ in range(2))
            found += run(joblib.delayed(sum_of)(array, more=array) for _ in range(5))
            assert [each.tolist() for each in found[:2]] == [[value, value]] * 2
            assert found[2:] == [value * 2**19] * 5
        Counted.pickled = 0
        run(joblib.delayed(sum_of)(array, more=array) for _ in range(5))
        assert Counted.pickled == 1
        run(joblib.delayed(sum_of)(np.ones(1 << 18), np.ones(1 << 18)) for _ in range(3))


def test_joblib_works_in_actors() -> None:
    joblib = pytest.importorskip("joblib")
    from dray.util.joblib import register_ray

    register_ray()
    with joblib.parallel_config(backend="ray", n_jobs=2):
        parallel = joblib.Parallel()
        assert parallel(joblib.delayed(root_of)(x * x) for x in range(9)) == list(range(9))
        assert os.getpid() not in parallel(joblib.delayed(pid)() for _ in range(2))
        with pytest.raises(ValueError, match="no root of -1"):
            parallel(joblib.delayed(root_of)(x) for x in (1, -1))
        one_by_one = joblib.Parallel(return_as="generator")
        assert list(one_by_one(joblib.delayed(root_of)(x * x) for x in range(9))) == list(range(9))
        with pytest.raises(ValueError, match="no root of -1"):
            list(one_by_one(joblib.delayed(root_of)(x) for x in (1, -1)))
        as_they_end = joblib.Parallel(return_as="generator_unordered")
        assert set(as_they_end(joblib.delayed(root_of)(x * x) for x in range(9))) == {*range(9)}
        with joblib.Parallel(timeout=0.3, batch_size=1) as hurried, pytest.raises(TimeoutError):
            hurried(joblib.delayed(time.sleep)(PATIENCE_S) for _ in range(2))
