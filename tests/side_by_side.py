"""Several pytest processes that share the files of tests, one file at a time.

Not pytest-xdist: its workers have a second thread, so that dray could not fork them to share their
imports, and nearly every session imported PyTorch anew (2 s of a core, where a fork takes 0.2 s).

    python -m tests.side_by_side 2 -m "not ray and not cluster"
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import chain

import pytest

_CLAIMS = "DRAY_TESTS_CLAIMS"  # the directory where a file of tests is claimed by making its name

# What takes longest begins first, so that no process is left alone with it at the end.
LONGEST = (
    "docs/test_example_integration.py",
    "docs/test_language_model_integration.py",
    "accelerators/test_devices_integration.py",
    "docs/test_snippets_integration.py",
    "docs/test_seed_scaling_integration.py",
    "engines/launch/test_driver_fork_integration.py",
    "train/jax/test_limits_integration.py",
    "docs/test_seed_integration.py",
    "train/torch/test_torch_integration.py",
    "train/worker/test_cpu_affinity_integration.py",
    "cli/test_doctor_integration.py",
    "core/test_ends_integration.py",
)
# What leaves threads of other libraries: after it no session can share the imports of the tests.
LEAVES_THREADS = ("train/storage/test_s3_integration.py", "data/test_dataset.py")


def main(arguments: list[str]) -> int:
    """Run the tests that pytest's options select; return the exit status.

    Args:
        arguments: How many processes, and then what pytest takes.
    """
    count, *options = arguments
    command = [sys.executable, "-m", "pytest", "-p", __spec__.name, *options]
    style = ["--no-header", "-o", "console_output_style=classic"]
    with tempfile.TemporaryDirectory(prefix="claims-") as claims:
        environment = {**os.environ, _CLAIMS: claims}
        processes = [
            subprocess.Popen([*command, *style], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(int(count))
        ]
        printing = threading.Lock()
        readers = [threading.Thread(target=_show, args=(p, printing)) for p in processes]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        statuses = {process.wait() for process in processes}
    return max(map(abs, statuses))


def _show(process: subprocess.Popen[str], printing: threading.Lock) -> None:
    """Show what a process has to say: each file's line at once, what follows them in one piece."""
    assert process.stdout is not None
    rest = []
    for line in process.stdout:
        if re.match(r"\S+\.py ", line):
            with printing:
                print(line, end="", flush=True)
        else:
            rest.append(line)
    with printing:
        print(*rest, sep="", flush=True)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the files that this process is the first to claim."""
    if _CLAIMS not in os.environ or session.testsfailed or session.config.option.collectonly:
        return None
    items = _claimed(session.items, os.environ[_CLAIMS])
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def _claimed(items: list[pytest.Item], claims: str) -> Iterator[pytest.Item]:
    """Yield the tests of one file after the other, of those that no process has claimed yet."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    first, last = (
        [name for name in (f"tests/{name}" for name in names) if name in files]
        for names in (LONGEST, LEAVES_THREADS)
    )
    others = (name for name in files if name not in {*first, *last})
    for name in chain(first, others, last):
        if _claim(os.path.join(claims, name.replace("/", "."))):
            yield from files[name]


def _claim(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
