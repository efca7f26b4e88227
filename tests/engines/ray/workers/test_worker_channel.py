"""The driver's listener for workers on other nodes, and strangers who call it and say nothing."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from dray.engines.ray.workers.worker_channel import DriverAddress, Hello, call

STRANGERS = 600
DRIVER = """
import resource, sys, threading
from dray.engines.ray.workers.worker_channel import WorkerListener
from dray.engines.rpc.io_thread import Reader

reader = Reader(lambda: None)
listener = WorkerListener("127.0.0.1", reader, lambda hello, worker: worker.send(hello.number))
reader.start()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
_, port, key, _ = listener.address(7)
print(port, key.hex(), flush=True)
sys.stdin.readline()
print(threading.active_count(), flush=True)
"""


@pytest.mark.parametrize("files", [60, 2000])
def test_a_worker_is_heard_among_strangers_who_say_nothing(files: int) -> None:
    with contextlib.ExitStack() as opened:
        driver = opened.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(files)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        opened.callback(driver.kill)
        assert driver.stdin is not None
        assert driver.stdout is not None
        port, key = driver.stdout.readline().split()
        for _ in range(STRANGERS):
            opened.enter_context(socket.create_connection(("127.0.0.1", int(port))))
        address = DriverAddress("127.0.0.1", int(port), bytes.fromhex(key), 7)
        worker = opened.enter_context(call(address, Hello(7, "wire", os.getpid(), "", "", {})))
        assert worker.recv() == 7
        print(file=driver.stdin, flush=True)
        assert int(driver.stdout.readline()) < min(files, 530)
