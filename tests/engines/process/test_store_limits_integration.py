"""The object store where there is no room: nothing fails that needs none, and the rest says why."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import dray
from dray.errors import ConfigError, ObjectStoreFullError
from dray.session import current_runtime
from tests.support.gates import Gate
from tests.support.programs import run, write

pytestmark = pytest.mark.usefixtures("session")


@dray.remote
def size(value: np.ndarray) -> int:
    return value.nbytes


def test_without_a_temporary_directory_only_what_goes_to_the_disk_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        dray.init(num_cpus=1, object_store_memory=10**6)
        assert dray.get(size.remote(np.zeros(500_000, np.uint8))) == 500_000
        kept: list[dray.ObjectRef] = [dray.put(np.zeros(300_000, np.uint8)) for _ in range(3)]
        with pytest.raises(ObjectStoreFullError, match=r"none.*TMPDIR"):
            dray.put(np.zeros(300_000, np.uint8))
        kept.pop()
        assert dray.get(size.remote(dray.put(np.zeros(300_000, np.uint8)))) == 300_000


NO_ROOM_FOR_A_MAP = """
import resource
import numpy as np
import dray
from dray.errors import ObjectStoreFullError

@dray.remote
def ones(count):
    return np.ones(count, np.uint8)

dray.init(num_cpus=1, object_store_memory=8 << 30)
ref = ones.remote(1 << 20)
assert dray.get(ones.remote(3)).tolist() == [1, 1, 1]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
for _ in range(2):
    try:
        dray.get(ref)
    except ObjectStoreFullError as error:
        print(error)
    assert dray.get(ones.remote(3)).tolist() == [1, 1, 1]
for _ in range(5):  # at a place that would be written through a map from the third time on
    del ref
    ref = dray.put(np.zeros(9 << 20, np.uint8))
assert dray.get(dray.remote(lambda value: int(value.sum())).remote(ref)) == 0
print("over")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_without_room_for_a_map_only_large_objects_fail(tmp_path: Path) -> None:
    script = write(tmp_path / "script.py", NO_ROOM_FOR_A_MAP)
    done = run(script, tmp_path)
    *said, over = done.stdout.splitlines() or [""]
    assert over == "over", done.stdout + done.stderr
    assert len(said) == 2
    for line in said:
        assert "cannot map the 8192 MiB for shared objects: [Errno 12]" in line
        assert "(ulimit -v); raise that limit, or set dray.init(object_store_memory=...)" in line


def test_more_results_than_there_can_be_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"at most 100,000.*num_returns='streaming'"):
        size.options(num_returns=2**31)


def test_what_is_larger_than_the_store_moves_nothing_else_to_the_disk() -> None:
    dray.init(num_cpus=1, object_store_memory=32 << 20)
    kept: list[dray.ObjectRef] = [dray.put(np.zeros(8 << 20, np.uint8)) for _ in range(2)]
    large: dray.ObjectRef = dray.put(np.zeros(40 << 20, np.uint8))
    objects = current_runtime().status().objects
    assert objects is not None
    assert objects.memory_bytes >= 16 << 20
    assert objects.disk_bytes < 48 << 20
    assert [dray.get(size.remote(it)) >> 20 for it in (*kept, large)] == [8, 8, 40]


def test_a_result_that_nobody_wants_any_more_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    @dray.remote
    def large(gate: Gate) -> np.ndarray:
        gate.pass_through()
        return np.zeros(40 << 20, np.uint8)

    dray.init(num_cpus=1, object_store_memory=32 << 20)
    gate = Gate(tmp_path)
    ref = large.remote(gate)
    gate.heard()
    del ref
    gate.open()
    assert dray.get(size.remote(np.zeros(1, np.uint8))) == 1  # after the other task has ended
    objects = current_runtime().status().objects
    assert objects is not None
    assert objects.disk_bytes == 0
