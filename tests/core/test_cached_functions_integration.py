"""Functions of a script that have caches of functools, in tasks, actors and trainings."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import run, write

CACHED = """
import functools

@functools.lru_cache(maxsize=100)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

def adds(number):
    @functools.cache
    def add(x):
        return x + number
    return add

@dray.remote
def task():
    return fibonacci(30), fibonacci.cache_info(), fibonacci.__name__

@dray.remote
class Actor:
    @functools.lru_cache
    def double(self, x):
        return 2 * x

    @functools.cached_property
    def made_once(self):
        return object()

    def call(self, add):
        assert self.made_once is self.made_once
        return self.double(1), self.double(1), type(self).double.cache_info().hits, add(1)

fibonacci(5)
print(*dray.get(task.remote()))
print(*dray.get(Actor.remote().call.remote(adds(3))))
print(fit(lambda: fibonacci(30)).return_value)
"""


def test_functions_with_caches_travel(tmp_path: Path) -> None:
    """Workers looked for them by their names, in a script that they have not run."""
    done = run(write(tmp_path / "script.py", CACHED), tmp_path / "runs", DRAY_PROGRESS="0")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "832040 CacheInfo(hits=28, misses=31, maxsize=100, currsize=31) fibonacci",
        "2 2 1 4",
        "832040",
    ]
