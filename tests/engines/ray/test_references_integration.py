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
import asyncio, atexit, dray, os, ray, signal, sys, threading
from dray.util import placement_group

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

@dray.remote
def late():
    threading.Event().wait()
    yield

async def wait_for(ref):
    return await ref

def start():
    dray.init(engine="ray", address=os.environ["CLUSTER"])

def tried(name, ask):
    try:
        told = str(ask())
    except BaseException as error:
        told = type(error).__name__ + " " + str(error).replace("\\n", " ")
    sys.stdout.write(f"> {name} {told}\\n")
"""


def test_what_an_ended_session_has_left_is_refused(tmp_path: Path, cluster: Cluster) -> None:
    script = write(
        tmp_path / "script.py",
        PROGRAM
        + """
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


def test_who_waits_hears_of_a_shutdown_in_another_thread(tmp_path: Path, cluster: Cluster) -> None:
    script = write(
        tmp_path / "script.py",
        PROGRAM
        + """
from dray.engines.ray import waits as known

def once(is_so, act):
    def look():
        while not is_so():  # nothing tells of it
            threading.Event().wait(0.01)
        act()

    threading.Thread(target=look).start()

start()
placement_group([{"special": 2}]).wait()
ref, group = sleep.remote(), placement_group([{"special": 1}])
waits = {
    "get": lambda: dray.get([ref, ref]),
    "get for long": lambda: dray.get(ref, timeout=100),
    "wait": lambda: dray.wait([ref]),
    "next": lambda: next(late.remote()),
    "future": ref.future().result,
    "await": lambda: asyncio.run(wait_for(ref)),
    "group": lambda: group.wait(100),
}
threads = [threading.Thread(target=tried, args=named) for named in waits.items()]
for thread in threads:
    thread.start()
once(lambda: (len(known._waits), len(known._futures)) == (6, 2), dray.shutdown)
tried("main thread", lambda: dray.get(ref))
for thread in threads:
    thread.join()
start()
signal.signal(signal.SIGALRM, lambda *_: dray.shutdown())
once(lambda: known._waits, lambda: os.kill(os.getpid(), signal.SIGALRM))
tried("handler", lambda: dray.get(sleep.remote()))
start()
print(dray.get(Counter.remote().add.remote(7)))
last = sleep.remote().future()
last.add_done_callback(lambda _: signal.raise_signal(signal.SIGINT))
try:
    dray.shutdown()
except KeyboardInterrupt:
    print("interrupted, connected:", ray.is_initialized())
atexit.register(lambda: left_over.join(0.5))  # once dray has ended
start()
await_long = lambda: asyncio.run(wait_for(sleep.remote()))
left_over = threading.Thread(target=await_long, daemon=True)
earlier = len(known._futures)
left_over.start()
while len(known._futures) == earlier:  # nothing tells of it
    threading.Event().wait(0.01)
""",
    )
    done = run(script, tmp_path, CLUSTER=cluster.address)
    assert "EngineError" not in done.stderr  # of the daemon thread, which is as nothing to the end
    told = "EngineError dray.shutdown() was called; the results will not arrive"
    said = [line for line in done.stdout.splitlines() if line.startswith("> ")]
    assert len(said) == 9, done.stderr
    assert [line for line in said if not line.endswith(told)] == []
    assert done.stdout.splitlines()[-2:] == ["7", "interrupted, connected: False"]
