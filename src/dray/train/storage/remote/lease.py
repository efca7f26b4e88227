"""The lease of a run: one driver at a time, on a storage that has no locks.

Each driver that holds the run has a file of its own, `.lease-<number>`, which it alone writes,
again every few seconds. A driver that takes over makes the file with the next number. If the
storage refuses to overwrite an existing file (S3, Google, Azure), only one driver can. Otherwise
two drivers that do so at the same moment notice it when they read the file again, at the latest
before they commit.

The number is the fencing token: a driver that sees a higher number than its own commits nothing any
more, and its growing files have the number in their names. The clocks of machines that share a
storage must agree to within a few seconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dray.errors import StorageError
from dray.host import boot_id
from dray.settings import Settings
from dray.train.storage.place import RemotePath, missing
from dray.train.storage.remote.retry import persistently

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_NAME = re.compile(r"\.lease-(\d{6,})$")
# Renewals within the time that a lease lasts.
_RENEWALS = 4


class Lease:
    """The right of one driver to write a run.

    Attributes:
        number: The fencing token; 0 before it is held.
        token: A text that no other driver has.
    """

    def __init__(self, run: RemotePath) -> None:
        self.number = 0
        self.token = os.urandom(16).hex()
        self._run = run
        self._lasts_s = Settings().lease_s
        self._good_until = 0.0
        self._taken_by = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Hold the run against other drivers, until `release`.

        Raises:
            StorageError: Another driver is at it, or the storage cannot be written.
        """
        self._run.make_folder()
        newest = newest_lease(self._run)
        held = read_lease(self._run, newest)
        if not _is_over(held):
            self._wait_for_end(newest, held)
        self._make(newest + 1)
        self._thread = threading.Thread(target=self._renew, name="dray-lease", daemon=True)
        self._thread.start()

    def _wait_for_end(self, number: int, held: dict[str, Any]) -> None:
        """Wait until a lease is over, whose driver may be dead, or is seen to be alive."""
        _logger.warning(
            "the run %s belongs to %s: waiting at most %.0f s for a sign that it is alive",
            self._run,
            held.get("who", "another driver"),
            float(held["until"]) - time.time(),
        )
        while not _is_over(held):
            left = float(held["until"]) - time.time()
            time.sleep(max(0.05, min(left, self._lasts_s / _RENEWALS)))
            now = read_lease(self._run, number)
            if now.get("until") != held["until"] and not _is_over(now):
                raise self._is_taken(now)
            held = now

    def _is_taken(self, held: dict[str, Any]) -> StorageError:
        return StorageError(
            f"another fit() uses the run {self._run} now: {held.get('who', 'unknown')}. Give "
            "this one another RunConfig(name=...), or wait for that one to end"
        )

    def _make(self, number: int) -> None:
        file = _file(self._run, number)
        self.number = number
        alone = True
        try:
            alone = self._write(file.create)
        except FileExistsError as error:
            held = read_lease(self._run, number)
            if held.get("token") != self.token:  # else an attempt succeeded that seemed to fail
                raise self._is_taken(held) from error
        held = read_lease(self._run, number)
        if held.get("token") != self.token:
            raise self._is_taken(held)
        if not alone:
            self._good_until = 0.0  # `check` looks again before anything is committed
        with contextlib.suppress(StorageError):  # it says nothing any more
            _file(self._run, number - 1).delete()

    def _write(self, put: Callable[[bytes], T]) -> T:
        """Write the lease, and take note of how long it is good then."""
        begun = _seconds_awake_and_asleep()
        text = self._text(time.time() + self._lasts_s)
        file = _file(self._run, self.number)
        try:
            answer = persistently(f"{file} cannot be written", lambda: put(text))
        except FileNotFoundError as error:
            raise missing(file, error) from error
        self._good_until = begun + self._lasts_s
        return answer

    def _text(self, until: float) -> bytes:
        said = {
            "token": self.token,
            "who": f"process {os.getpid()} on {socket.gethostname()}",
            "process": process_identity(os.getpid()),
            "until": until,
        }
        return json.dumps(said).encode()

    def check(self) -> None:
        """Check that the run is still this driver's.

        Raises:
            StorageError: Another one has taken it over, or might have by now.
        """
        if not self._taken_by and _seconds_awake_and_asleep() > self._good_until:
            self._look()
        if self._taken_by:
            raise StorageError(
                f"the run {self._run} does not belong to this driver any more: {self._taken_by}; "
                "the checkpoints committed before that stay"
            )

    def _look(self) -> None:
        """Look who holds the run; renew the lease if that is this driver."""
        newest = newest_lease(self._run)
        held = read_lease(self._run, newest)
        if newest > self.number or held.get("token", self.token) != self.token:
            self._taken_by = f"{held.get('who', 'another driver')} has taken it over"
            return
        file = _file(self._run, self.number)
        self._write(file.put)

    def _renew(self) -> None:
        while not self._ended.wait(self._lasts_s / _RENEWALS):
            if self._taken_by:
                return
            with contextlib.suppress(StorageError):  # it is tried again, and `check` raises
                self._look()

    def release(self) -> None:
        """Let other drivers have the run at once."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        if not self._taken_by:
            file = _file(self._run, self.number)
            with contextlib.suppress(StorageError, FileNotFoundError):  # then it ends by itself
                file.write_bytes(self._text(0.0))


def _seconds_awake_and_asleep() -> float:
    """Return the seconds since some moment; a machine that sleeps loses its leases meanwhile."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _file(run: RemotePath, number: int) -> RemotePath:
    return run / f".lease-{number:06d}"


def newest_lease(run: RemotePath) -> int:
    """Return the number of the newest lease of a run; 0 if there is none."""
    return max((int(m[1]) for name in run.names() if (m := _NAME.match(name))), default=0)


def read_lease(run: RemotePath, number: int) -> dict[str, Any]:
    """Return what a lease says; nothing if there is none, or one that cannot be understood."""
    try:
        held = json.loads(_file(run, number).read_bytes()) if number else {}
    except (FileNotFoundError, ValueError):
        return {}
    return held if isinstance(held, dict) and isinstance(held.get("until"), float) else {}


def _is_over(held: dict[str, Any]) -> bool:
    """Return whether a lease has ended: it has run out, or its driver is known to be dead."""
    if not held or time.time() >= held["until"]:
        return True
    said = held.get("process")
    here = process_identity(os.getpid())
    if not isinstance(said, list) or not here or said[:1] != here[:1]:
        return False  # of another machine, or of this one before it was started again
    return process_identity(int(said[1])) != said


def process_identity(pid: int) -> list[Any]:
    """Return what no other process ever is: machine since its start, pid, start of the process.

    Empty where that cannot be known, or there is no such process.
    """
    boot = boot_id()
    try:
        space = os.readlink("/proc/self/ns/pid")
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if boot is None or fields[0] in "ZX" else [f"{boot} {space}", pid, fields[19]]
