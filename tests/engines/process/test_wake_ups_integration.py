"""Wake-ups of an actor's process: one for each call, and none for what the driver reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = 300
PROGRAM = f"""
import os, resource
import dray

os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})  # with one core, nobody waits awake

@dray.remote
class Sleeper:
    def sleeps(self):
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

dray.init(num_cpus=1)
sleeper = Sleeper.remote()
first = dray.get(sleeper.sleeps.remote())
for _ in range({CALLS}):
    last = dray.get(sleeper.sleeps.remote())
print(last - first)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux's affinity")
def test_a_worker_is_woken_once_for_a_call(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    sleeps = int(subprocess.check_output([sys.executable, str(script)], text=True))
    assert sleeps < 1.2 * CALLS, f"a worker slept {sleeps} times in {CALLS} calls"
