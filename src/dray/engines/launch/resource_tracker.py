"""The removal of named shared memory and semaphores of a worker when the worker ends.

multiprocessing reports them to a tracker process, which would remove them. But in a worker that
process would be in the worker's process group, and be killed with it. So the fork server is the
tracker of its workers: it reads their reports and needs no further process. In the other direction,
the socket of these reports carries the messages that a worker must receive while it works.

The protocol is that of `multiprocessing.resource_tracker`: a line is `REGISTER:name:kind`,
`UNREGISTER:name:kind` or a probe, and is written in one call. From Python 3.15 on, the line is JSON
with the name in base64.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from dray.engines.launch.learned_imports import AT_ONCE, IF_REPEATED
from dray.engines.rpc import sockets

_SHARED_MEMORY = "/dev/shm"


class MadeResources:
    """The named shared memory and semaphores of one worker; made before the worker is.

    Args:
        earlier: Modules that workers of tasks have imported so far; None if this worker has another
            environment than its server, which then learns nothing from its tasks.

    Attributes:
        imported: Modules that it has imported, for its server to import.
        repeatable: Modules that it has imported, for its server to import if other workers do too.
        to_tell: Data for the worker to hear, which it has not taken yet.
        inlet: Pipe end for the worker and what it starts.
        outlet: Pipe end that is read.
    """

    def __init__(self, earlier: frozenset[str] | None) -> None:
        self.earlier = earlier
        outlet, inlet = sockets.socket_pair()
        outlet.setblocking(False)
        self.outlet, self.inlet = outlet.detach(), inlet.detach()
        self.imported: list[str] = []
        self.repeatable: list[str] = []
        self.to_tell = b""
        self._names: set[tuple[str, str]] = set()
        self._rest = b""
        # Who opens shared memory tells of it like who makes it, but the driver's must stay.
        self._others = _names_in_use()

    def read(self) -> bool:
        """Take note of what has been told; return False when nobody is left who might tell."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := os.read(self.outlet, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._take(line.decode("ascii", "replace"))
            return False
        return True

    def tell_back(self) -> None:
        """Have the worker hear as much of `to_tell` as it takes now."""
        try:
            self.to_tell = self.to_tell[os.write(self.outlet, self.to_tell) :]
        except BlockingIOError:
            return
        except OSError:  # it is gone, or hears of nothing any more
            self.to_tell = b""

    def _take(self, line: str) -> None:
        word, name, kind = _parts(line)
        if word == "REGISTER" and name.lstrip("/") not in self._others:
            self._names.add((kind, name))
        elif word == "UNREGISTER":
            self._names.discard((kind, name))
        elif word == AT_ONCE:
            self.imported = name.split(",")
        elif word == IF_REPEATED:
            self.repeatable = name.split(",")

    def remove(self, living: Collection[MadeResources]) -> None:
        """Remove what is left, unless a worker that lives uses it too."""
        self.read()
        os.close(self.outlet)
        if not self._names:
            return
        from multiprocessing import resource_tracker

        for made in living:
            made.read()
        removers = getattr(resource_tracker, "_CLEANUP_FUNCS", {})
        for kind, name in self._names.difference(*(other._names for other in living)):
            with contextlib.suppress(OSError):  # it is gone already
                removers.get(kind, _ignore)(name)


def _parts(line: str) -> tuple[str, str, str]:
    """Return a line's command, name and kind."""
    if not line.startswith("{"):
        word, _, rest = line.partition(":")
        name, _, kind = rest.rpartition(":")
        return word, name, kind
    import base64  # only newer Pythons come here
    import json

    told = json.loads(line)
    name = os.fsdecode(base64.urlsafe_b64decode(told.get("base64_name", "")))
    return told["cmd"], name, told["rtype"]


def tell(inlet: int) -> None:
    """Have multiprocessing, in a worker, tell the fork server what it makes."""
    from multiprocessing import resource_tracker

    # As multiprocessing itself does it in a process that it spawns.
    vars(resource_tracker._resource_tracker).update(_fd=inlet, _pid=None)


def _names_in_use() -> frozenset[str]:
    with contextlib.suppress(OSError):  # only Linux shows them
        return frozenset(os.listdir(_SHARED_MEMORY))
    return frozenset()


def _ignore(name: str) -> None:
    """Do nothing about a kind that this Python does not know."""
