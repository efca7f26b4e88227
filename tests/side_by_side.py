"""Files of tests side by side: forks of the process that has collected them run a file at a time.

Not pytest-xdist: its workers have a second thread, so that dray could not fork them to share their
imports, and nearly every session imported PyTorch anew (2 s of a core, where a fork takes 0.2 s);
and each worker itself imports what all files of tests import (8 s of a core). For the same reason
a fork in which a file leaves threads of other libraries ends, and another one takes its place;
unless there are tests of Ray, since a fork keeps its cluster for all of them.

    python -m pytest -p tests.side_by_side --processes 2 -m "not ray and not cluster"
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from itertools import chain, zip_longest
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, cast

import pytest

from dray.engines.launch import driver_fork

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
_NUMBER = struct.Struct("<I")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the number of processes."""
    parser.addoption("--processes", type=int, default=2, help="how many run files of tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Run the tests by a plugin that forks, unless there is nothing to run."""
    if not session.testsfailed and not session.config.option.collectonly:
        session.config.pluginmanager.register(Parent(_by_file(session.items)))


class Fork:
    """A pytest that runs the files which it is the first to take, and tells its parent.

    Args:
        numbers: Descriptor of a pipe with the numbers of files that nobody has taken.
        first: Number of a file that another fork has taken and left.
    """

    def __init__(
        self,
        config: pytest.Config,
        files: list[list[pytest.Item]],
        numbers: int,
        tells: Connection,
        first: int | None,
    ) -> None:
        self.config = config
        self._files = files
        self._numbers = numbers
        self._tells = tells
        self._first = first
        self._renews = not any(map(_is_of_ray, chain.from_iterable(files)))
        self._reports: list[dict[str, Any]] = []
        # What a test that takes too long is shown on.
        self._tw = pytest.TerminalReporter(config, sys.stderr)._tw
        capture = cast(Any, config.pluginmanager.get_plugin("capturemanager"))
        capture.stop_global_capturing()  # whose files all forks would share
        capture.start_global_capturing()
        capture.suspend_global_capture()

    def pytest_runtestloop(self) -> bool:
        """Run files until there are no more, or one has left threads of other libraries."""
        number = self._take() if self._first is None else self._first
        while number is not None:
            following = self._take()
            self._run(self._files[number], [] if following is None else self._files[following])
            if self._renews and following is not None and _has_threads_of_others():
                self._tells.send(following)
                break
            number = following
        self._tells.close()
        return True

    def _take(self) -> int | None:
        number = os.read(self._numbers, _NUMBER.size)
        return cast(int, _NUMBER.unpack(number)[0]) if number else None

    def _run(self, items: list[pytest.Item], following: list[pytest.Item]) -> None:
        """Run a file, with the same end of each test as if all files were one."""
        self._tells.send(items[0].nodeid.partition("::")[0])
        for item, after in zip_longest(items, [*items[1:], *following[:1]]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        self._tells.send(self._reports)
        self._reports = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep it until the file is done."""
        hook = self.config.hook.pytest_report_to_serializable
        self._reports.append(hook(config=self.config, report=report))


def _is_of_ray(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("ray", "cluster")))


def _has_threads_of_others() -> bool:
    own = sum(thread.name.startswith("dray-") for thread in threading.enumerate())
    return driver_fork.threads() - own > 1


class Parent:
    """The pytest that forks: it shows what its forks tell."""

    def __init__(self, files: list[list[pytest.Item]]) -> None:
        self._files = files
        self._numbers, numbered = os.pipe()
        os.write(numbered, b"".join(map(_NUMBER.pack, range(len(files)))))
        os.close(numbered)
        self._forks: dict[Connection, int] = {}  # their process ids
        self._at: dict[Connection, str] = {}  # the files that they run

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Show a file's tests when it is done; fail if a fork has died."""
        try:
            for _ in range(session.config.option.processes):
                if self._runs_as_fork(session):
                    return True
            while self._forks:
                for told in cast(list[Connection], wait([*self._forks])):
                    try:
                        said = told.recv()
                    except EOFError:
                        _reap(self._forks.pop(told), self._at[told])
                        continue
                    if isinstance(said, str):
                        self._at[told] = said
                    elif isinstance(said, int):
                        if self._runs_as_fork(session, said):
                            return True
                    else:
                        _show(session, said)
        finally:
            for pid in self._forks.values():
                os.kill(pid, signal.SIGINT)
                os.waitpid(pid, 0)
        return True

    def _runs_as_fork(self, session: pytest.Session, first: int | None = None) -> bool:
        """Fork; in the fork run files and return True.

        One plugin runs tests in each fork, and another one, this, tells of them in the parent.
        """
        told, tells = Pipe(duplex=False)
        sys.stdout.flush()
        pid = os.fork()
        if pid != 0:
            tells.close()
            self._forks[told], self._at[told] = pid, "no file"
            return False
        for other in [told, *self._forks]:
            other.close()
        self._forks.clear()
        plugins = session.config.pluginmanager
        plugins.unregister(self)
        plugins.unregister(name="terminalreporter")
        fork = Fork(session.config, self._files, self._numbers, tells, first)
        plugins.register(fork, "terminalreporter")
        session.config.hook.pytest_runtestloop(session=session)
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
    return [files[name] for name in dict.fromkeys([*first, *files])]
