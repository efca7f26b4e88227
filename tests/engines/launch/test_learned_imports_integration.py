"""Modules that workers have imported: the next workers find them, unless a server must not."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.gates import PATIENCE_S
from tests.support.programs import Program, run, survivors, write

MODULES = 60
# Fits until workers find a package, and says what the workers of each fit have found.
FIT = """
import importlib, json, time

def look(packages):
    found = [name for name in packages if name in sys.modules]
    for name in packages:
        importlib.import_module(name)
    return found, os.getppid()

def fit_with(*packages):
    return fit(lambda: look(packages)).return_value

def until(is_found, look):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        seen = look()
        if is_found(seen):
            return seen
    sys.exit("it was never there")

def fit_until_found(package, *others):
    return until(lambda seen: package in seen[0], lambda: fit_with(package, *others))
""".replace("PATIENCE_S", str(PATIENCE_S / 2))


def package(folder: Path, name: str, code: str = "") -> None:
    """Make a package of many modules; its code runs first."""
    (folder / name).mkdir(parents=True)
    for index in range(MODULES):
        (folder / name / f"part{index}.py").touch()
    imports = "\n".join(f"import {name}.part{index}" for index in range(MODULES))
    (folder / name / "__init__.py").write_text(f"{code}\n{imports}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages on the import path of programs."""
    folder = tmp_path / "site-packages"
    package(folder, "useful")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def lines_of(tmp_path: Path, storage: Path, code: str) -> list[str]:
    done = run(write(tmp_path / "script.py", FIT + code), storage, DRAY_PROGRESS="0")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.usefixtures("installed")
def test_what_workers_have_imported_the_next_ones_find(tmp_path: Path, storage: Path) -> None:
    code = "print(fit_with('useful')[0], fit_until_found('useful')[0])"
    assert lines_of(tmp_path, storage, code) == ["[] ['useful']"]


def test_the_programs_own_modules_are_read_anew(
    installed: Path, tmp_path: Path, storage: Path
) -> None:
    package(tmp_path, "mine", "VALUE = 1")
    code = """
fit_until_found('useful', 'mine')
path = os.path.join(os.path.dirname(__file__), 'mine', '__init__.py')
with open(path) as file:
    text = file.read()
with open(path, 'w') as file:
    file.write(text.replace('VALUE = 1', 'VALUE = 2222'))
print(fit(lambda: importlib.import_module('mine').VALUE).return_value)
"""
    assert lines_of(tmp_path, storage, code) == ["2222"]


@pytest.mark.usefixtures("installed")
def test_a_changed_environment_has_modules_read_it_anew(tmp_path: Path, storage: Path) -> None:
    code = """
fit_until_found('useful')
os.environ['WHERE'] = 'elsewhere'
print(fit_with('useful')[0])
del os.environ['WHERE']
print(fit_with('useful')[0])
"""
    assert lines_of(tmp_path, storage, code) == ["[]", "['useful']"]


def test_there_are_three_heirs_at_most(installed: Path, tmp_path: Path, storage: Path) -> None:
    for number in range(4):
        package(installed, f"package{number}")
    code = """
import psutil
for number in range(3):
    fit_until_found(f"package{number}")
fit_with("package3")
print(len(psutil.Process().children(recursive=True)))
"""
    assert lines_of(tmp_path, storage, code) == ["4"]  # the server, and its heirs


def test_the_thread_of_jemalloc_keeps_nothing_out(
    installed: Path, tmp_path: Path, storage: Path
) -> None:
    pytest.importorskip("pyarrow")
    package(installed, "frames", "import pyarrow; pyarrow.array([1])")
    assert lines_of(tmp_path, storage, "print(fit_until_found('frames')[0])") == ["['frames']"]


# What a module does where there is no rank, which is in a server.
IN_A_SERVER = {
    "hangs": "import os, time; 'RUN_HERE' in os.environ or time.sleep(1000)",
    "crashes": "import os; 'RUN_HERE' in os.environ or os.abort()",
}
UNFIT = {
    "starts a thread": (
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    ),
    "starts a process": "import subprocess; process = subprocess.Popen(['sleep', '100'])",
    "asks for the rank": "import os; RANK = os.environ.get('RANK')",
    "asks for its devices": "import os; SHOWN = os.environ.get('ASCEND_RT_VISIBLE_DEVICES')",
    "fails there": "import os; os.environ['RANK']",
    "exits": "import os; 'RANK' in os.environ or os.sys.exit()",
    "writes": "import os; 'RANK' in os.environ or print('HERE', os.write(2, b'HERE'))",
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_forks_must_not_have_is_left_out(
    what: str, installed: Path, tmp_path: Path, storage: Path
) -> None:
    package(installed, "unfit", UNFIT[what])
    code = """
found, _ = fit_until_found('useful', 'unfit')
print(found, fit_with('unfit')[0])
"""
    assert lines_of(tmp_path, storage, code) == ["['useful'] []"]


@pytest.mark.parametrize("what", IN_A_SERVER)
def test_what_hangs_or_crashes_in_a_server_stops_no_fit(
    what: str, installed: Path, tmp_path: Path, storage: Path
) -> None:
    package(installed, "bad", IN_A_SERVER[what])
    script = write(
        tmp_path / "script.py",
        FIT
        + """
def train():
    os.environ['RUN_HERE'] = '1'  # the server does not have it
    return look(['bad'])[0]
print([fit(train).return_value for _ in range(4)])
""",
    )
    with Program(script, storage, DRAY_PROGRESS="0") as program:
        status, output = program.end()
    assert (status, output) == (0, "[[], [], [], []]\n")


# Its workers come from an heir; they wait, with a process each that is in a session of its own.
WAITING = """
import subprocess
fit_until_found('useful')

def wait():
    child = subprocess.Popen(['sleep', '1000'], start_new_session=True)
    print('pids', os.getppid(), os.getpid(), child.pid, flush=True)
    time.sleep(1000)

try:
    fit(wait, workers=1)
except dray.train.WorkerGroupError as error:
    print('failed', fit_with('useful')[0])
"""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("who", ["heir", "server", "worker", "driver", "heir and server"])
def test_nothing_is_left_behind(who: str, tmp_path: Path, storage: Path) -> None:
    script = write(tmp_path / "script.py", FIT + WAITING)
    with Program(script, storage) as program:
        heir, worker, child = map(int, program.wait_for("pids").split("pids")[1].split())
        server = psutil.Process(heir).ppid()
        assert psutil.Process(server).ppid() == program.process.pid
        pids = {"heir": heir, "server": server, "worker": worker, "driver": program.process.pid}
        for name in who.split(" and "):
            with contextlib.suppress(ProcessLookupError):  # a server ends with its heir
                os.kill(pids[name], signal.SIGKILL)
        if who == "driver":
            assert survivors([heir, worker, child, server]) == []
            return
        status, output = program.end()
        assert status == 0, output
        assert "failed" in output
        assert survivors([heir, worker, child, server]) == []


def test_no_process_is_left_of_an_heir_that_still_imports(
    installed: Path, tmp_path: Path, storage: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # nobody writes to it
    package(installed, "slow", f"import os; 'RANK' in os.environ or open({str(fifo)!r})")
    code = "fit_with('slow'); print('done', flush=True); input()"
    script = write(tmp_path / "script.py", FIT + code)
    with Program(script, storage) as program:
        program.wait_for("done")
        below = [p.pid for p in psutil.Process(program.process.pid).children(recursive=True)]
        os.kill(program.process.pid, signal.SIGKILL)
        assert survivors(below) == []


# Tasks that get a process each, and say whether they have found a package there.
TASKS = """
@dray.remote(max_calls=1)
def look(name):
    found = name in sys.modules
    importlib.import_module(name)
    return found

def look_until_found(name):
    looks = []
    until(bool, lambda: looks.append(dray.get(look.remote(name))) or looks[-1])
    return looks
"""


@pytest.mark.usefixtures("installed")
def test_what_tasks_import_again_and_again_the_next_ones_find(
    tmp_path: Path, storage: Path
) -> None:
    code = "print(look_until_found('useful')[:2])"
    assert lines_of(tmp_path, storage, TASKS + code) == ["[False, False]"]


def test_what_one_worker_of_tasks_imports_nobody_else_does(
    installed: Path, tmp_path: Path, storage: Path
) -> None:
    package(installed, "rare")
    code = """
dray.get(look.remote('rare'))
print(look_until_found('useful')[:2])  # so that all that could be learned is
print(dray.get(look.remote('rare')))
"""
    assert lines_of(tmp_path, storage, TASKS + code) == ["[False, False]", "False"]


@pytest.mark.usefixtures("installed")
def test_tasks_with_variables_of_their_own_import_by_themselves(
    tmp_path: Path, storage: Path
) -> None:
    code = """
apart = look.options(runtime_env={"env_vars": {"WHERE": "elsewhere"}})
look_until_found('useful')
print(dray.get([apart.remote('useful') for _ in range(4)]))
print(dray.get(look.remote('useful')))
"""
    assert lines_of(tmp_path, storage, TASKS + code) == ["[False, False, False, False]", "True"]


@pytest.mark.usefixtures("installed")
def test_actors_that_are_made_again_find_what_those_before_them_had(
    tmp_path: Path, storage: Path
) -> None:
    code = """
@dray.remote
class Model:
    def __init__(self):
        self.found = 'useful' in sys.modules
        import useful

    def has_found(self):
        return self.found

def look_in_actor():
    model = Model.remote()
    found = dray.get(model.has_found.remote())
    dray.kill(model)
    return found

print(until(bool, look_in_actor))
"""
    assert lines_of(tmp_path, storage, code) == ["True"]
