"""The sidecar of a worker: a small process that notices the worker's end, whatever its cause.

It forwards the worker's output to the driver, so that the last output arrives even if the worker
crashed. It then kills the processes that the worker has started and left behind. It is a program of
its own, run with `python -I -S`, and imports nothing of dray.
"""

import contextlib
import os
import select
import signal
import sys


def keep(worker: int, streams: "dict[int, int]") -> None:
    """Carry output until it ends, and end what the worker leaves behind.

    Args:
        worker: Its pid; it leads a process group.
        streams: The read end of a pipe -> where its data goes.
    """
    poll = select.poll()
    for source in streams:
        poll.register(source, select.POLLIN)
    handle = os.pidfd_open(worker)
    poll.register(handle, select.POLLIN)
    while streams:
        for fd, _ in poll.poll():
            if fd == handle:
                poll.unregister(handle)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker, signal.SIGKILL)
                continue
            data = os.read(fd, 65536)
            if data:
                _write(streams[fd], data)
                continue
            poll.unregister(fd)
            os.close(streams.pop(fd))


def _write(target: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(target, data) :]
        except OSError:  # the driver is gone; the worker must still get rid of its output
            return


if __name__ == "__main__":
    if os.fork():  # not a child of the worker: Ray kills those before it lets a worker end
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pid, out, err, out_target, err_target = map(int, sys.argv[1:])
    keep(pid, {out: out_target, err: err_target})
