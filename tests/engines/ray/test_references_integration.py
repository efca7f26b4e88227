"""Waiting on a cluster, and what an ended session has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clusters import Cluster
from tests.support.programs import run, write

pytestmark = [
    pytest.mark.usefixtures("engine"),
    pytest.mark.parametrize("engine_name", ["ray"], indirect=True),
]

PROGRAM = """
import dray, os, threading

@dray.remote
def count():
    yield from range(3)

@dray.remote
class Counter:
    def add(self, number=1):
        return number

@dray.remote
def sleep():
    threading.Event().wait()

async def wait_for(ref):
    return await ref

def start():
    dray.init(engine="ray", address=os.environ["CLUSTER"])

def tried(name, ask):
    try:
        print(">", name, ask())
    except BaseException as error:
        print(">", name, type(error).__name__, str(error).replace("\\n", " "))
"""


def test_what_an_ended_session_has_left_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    script = write(
        tmp_path / "script.py",
        PROGRAM
        + """
import asyncio
start()
old, ref, numbers = Counter.remote(), dray.put(1), count.remote()
add = old.add
next(numbers)
dray.shutdown()
start()
new = Counter.remote()
tried("get", lambda: dray.get(ref))
tried("wait", lambda: dray.wait([ref]))
tried("await", lambda: asyncio.run(wait_for(ref)))
tried("future", lambda: ref.future().result())
tried("next", lambda: next(numbers))
tried("argument", lambda: new.add.remote(ref))
tried("call", lambda: old.add.remote())
tried("bound", lambda: add.remote())
tried("kill", lambda: dray.kill(old))
print(dray.get(new.add.remote(7)))
""",
    )
    done = run(script, tmp_path, CLUSTER=cluster.address)
    said = [line for line in done.stdout.splitlines() if line.startswith("> ")]
    assert len(said) == 9, done.stderr
    for line in said:
        assert " ObjectLostError " in line
        assert "belongs to a session that has ended" in line
    assert "kill ObjectLostError Actor(Counter, " in said[-1]
    assert done.stdout.splitlines()[-1] == "7"
