"""Files of tests side by side: forks of the process that has collected them run a file at a time.

Not pytest-xdist: its workers have a second thread, so that dray could not fork them to share their
imports, and nearly every session imported PyTorch anew (2 s of a core, where a fork takes 0.2 s);
and each worker itself imports what all files of tests import (8 s of a core).

    python -m pytest -p tests.side_by_side --processes 2 -m "not ray and not cluster"
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Iterator
from itertools import chain
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, cast

import pytest

# What takes longest begins first, so that no process is left alone with it at the end.
LONGEST = (
    "docs/test_example_integration.py",
    "docs/test_language_model_integration.py",
    "docs/test_snippets_integration.py",
    "docs/test_seed_scaling_integration.py",
    "docs/test_seed_integration.py",
    "train/jax/test_limits_integration.py",
    "engines/test_conformance_integration.py",
    "core/test_errors_integration.py",
    "engines/test_interrupts_integration.py",
    "engines/launch/test_learned_imports_integration.py",
    "accelerators/test_devices_integration.py",
    "train/torch/test_torch_integration.py",
    "train/run/test_stops_integration.py",
    "engines/test_lifetime_integration.py",
    "engines/launch/test_driver_fork_integration.py",
    "engines/test_user_forks_integration.py",
    "train/jax/test_platforms_integration.py",
    "cli/test_doctor_integration.py",
    "core/test_ends_integration.py",
)
# What leaves threads of other libraries: after it no session can share the imports of the tests,
# and each imports PyTorch anew.
LEAVES_THREADS = (
    "train/storage/test_remote_runs_integration.py",
    "train/storage/test_s3_integration.py",
    "train/storage/test_object_storage.py",
    "train/test_datasets_integration.py",
    "data/",
)

_NUMBER = struct.Struct("<I")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the number of processes."""
    parser.addoption("--processes", type=int, default=2, help="how many run files of tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Fork; one plugin runs tests in each fork, and another one tells of them here."""
    if session.testsfailed or session.config.option.collectonly:
        return
    files = _by_file(session.items)
    numbers, numbered = os.pipe()  # of files that nobody has begun
    os.write(numbered, b"".join(map(_NUMBER.pack, range(len(files)))))
    os.close(numbered)
    sys.stdout.flush()
    forks = {}
    for _ in range(session.config.option.processes):
        told, tells = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            session.config.pluginmanager.unregister(name="terminalreporter")
            session.config.pluginmanager.register(
                Fork(session.config, files, numbers, tells), "terminalreporter"
            )
            return
        tells.close()
        forks[told] = pid
    os.close(numbers)
    session.config.pluginmanager.register(Parent(forks))


class Fork:
    """A pytest that runs the files which it is the first to take, and tells its parent."""

    def __init__(
        self, config: pytest.Config, files: list[list[pytest.Item]], numbers: int, tells: Connection
    ) -> None:
        self.config = config
        self._files = files
        self._numbers = numbers
        self._tells = tells
        self._reports: list[dict[str, Any]] = []
        # What a test that takes too long is shown on.
        self._tw = pytest.TerminalReporter(config, sys.stderr)._tw
        capture = cast(Any, config.pluginmanager.get_plugin("capturemanager"))
        capture.stop_global_capturing()  # whose files all forks would share
        capture.start_global_capturing()
        capture.suspend_global_capture()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the files, with the same end of each test as if they were all."""
        items = self._taken()
        item, file = next(items, None), None
        while item is not None:
            if item.path != file:
                file = item.path
                self._tells.send(item.nodeid.partition("::")[0])
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if following is None or following.path != file:
                self._tells.send(self._reports)
                self._reports = []
            item = following
        self._tells.close()
        return True

    def _taken(self) -> Iterator[pytest.Item]:
        while number := os.read(self._numbers, _NUMBER.size):
            yield from self._files[_NUMBER.unpack(number)[0]]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep it until the file is done."""
        hook = self.config.hook.pytest_report_to_serializable
        self._reports.append(hook(config=self.config, report=report))


class Parent:
    """The pytest that has forked: it shows what its forks tell."""

    def __init__(self, forks: dict[Connection, int]) -> None:
        self._forks = forks

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Show a file's tests when it is done; fail if a fork has died."""
        left, at = {**self._forks}, dict.fromkeys(self._forks, "no file")
        try:
            while left:
                for told in cast(list[Connection], wait([*left])):
                    try:
                        said = told.recv()
                    except EOFError:
                        _reap(left.pop(told), at[told])
                    else:
                        if isinstance(said, str):
                            at[told] = said
                        else:
                            _show(session, said)
        finally:
            for pid in left.values():
                os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)
        return True


def _reap(pid: int, file: str) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise pytest.UsageError(f"the process that ran {file} ended with status {status}")


def _show(session: pytest.Session, reports: list[dict[str, Any]]) -> None:
    hook = session.config.hook
    for data in reports:
        report = hook.pytest_report_from_serializable(config=session.config, data=data)
        if report.when == "setup":
            hook.pytest_runtest_logstart(nodeid=report.nodeid, location=report.location)
        hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)


def _by_file(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """Return the tests of each file, in the order in which files begin."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    first = [name for name in (f"tests/{name}" for name in LONGEST) if name in files]
    last = [n for late in LEAVES_THREADS for n in files if n.startswith(f"tests/{late}")]
    others = (name for name in files if name not in {*first, *last})
    return [files[name] for name in chain(first, others, last)]
