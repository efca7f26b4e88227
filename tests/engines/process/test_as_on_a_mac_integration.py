"""The process engine where the system has no epoll, no /proc and no nameless files, as on macOS."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

from dray.engines.process.polling import READ, WRITE, PollSet
from tests.support.gates import PATIENCE_S
from tests.support.programs import environment, write

STRIPPED = Path(__file__).parents[2] / "support" / "as_on_a_mac"

PROGRAM = """
import signal
import numpy as np
import dray, dray.errors

@dray.remote(max_retries=0)
def double(x):
    return 2 * x

@dray.remote(max_retries=0)
def crash():
    os.kill(os.getpid(), signal.SIGKILL)

@dray.remote
def count(to):
    yield from range(to)

@dray.remote(max_restarts=1)
class Actor:
    def number(self):
        return os.getpid()

    def crash(self):
        os._exit(3)

    async def wait(self):
        return 1

@dray.remote(num_cpus=0)
def train():
    def loop():
        dray.train.report({"doubled": dray.get(double.remote(4))})
        return dray.train.get_context().get_world_size()

    result = fit(loop)
    return result.return_value, result.metrics

def restarted():
    if dray.train.get_checkpoint() is None:
        with dray.train.checkpoint_dir() as path:
            dray.train.report({}, checkpoint=dray.train.Checkpoint(path))
        os.kill(os.getpid(), signal.SIGKILL)
    dray.train.report({"restarted": dray.train.get_checkpoint() is not None})

dray.init(num_cpus=4, object_store_memory=20_000_000)
arrays = [dray.put(np.full(1_000_000, i)) for i in range(4)]  # some of them on the disk
print(dray.get([double.remote(i) for i in range(4)]), [int(dray.get(a).sum()) for a in arrays])
print([dray.get(item) for item in count.remote(3)])
actor = Actor.remote()
first = dray.get(actor.number.remote())
print(sum(dray.get([actor.wait.remote() for _ in range(9)])))
for call in (crash, actor.crash):
    try:
        dray.get(call.remote())
    except dray.errors.DrayError as error:
        print(type(error).__name__)
print(dray.get(actor.number.remote()) != first)
print(dray.get(train.remote()))
print(fit(restarted, failure_config=FailureConfig(max_failures=1)).metrics)
"""


def test_a_program_runs_as_on_a_mac(tmp_path: Path) -> None:
    """The first task ended with `module 'select' has no attribute 'epoll'`."""
    script = write(tmp_path / "script.py", PROGRAM)
    paths = os.pathsep.join([str(STRIPPED), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(tmp_path / "runs", DRAY_PROGRESS="0", PYTHONPATH=paths),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.stderr) == (
        "[0, 2, 4, 6] [0, 1000000, 2000000, 3000000]\n[0, 1, 2]\n9\n"
        "WorkerDiedError\nActorUnavailableError\nTrue\n(2, {'doubled': 8})\n"
        "{'restarted': True}\n",
        "",
    )


def test_a_set_that_another_thread_changes_while_one_waits() -> None:
    one, other = socket.socketpair()
    found: list[list[tuple[int, int]]] = []
    polls = PollSet()
    waiting = threading.Thread(target=lambda: found.append(polls.poll(PATIENCE_S)))
    waiting.start()
    polls.register(one, READ)
    polls.modify(one, READ | WRITE)
    waiting.join()
    assert found == [[(one.fileno(), select.POLLOUT)]]
    polls.modify(one, READ)
    assert polls.poll(0) == []
    other.send(b"x")
    assert polls.poll(PATIENCE_S) == [(one.fileno(), select.POLLIN)]
    polls.unregister(one)
    assert polls.poll(0) == []
    for sock in (one, other, polls):
        sock.close()
