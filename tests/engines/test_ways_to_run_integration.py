"""Every way to start Python works without a main guard, and the main module runs once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import PRELUDE, environment, run, write

# Workers see classes and globals of the main module.
DEFINITIONS = """
FACTOR = 3

class Model:
    def __init__(self, x):
        self.x = x

def scale(model):
    return model.x * FACTOR

def train():
    import pickle
    model = Model(7)
    assert type(pickle.loads(pickle.dumps(model))) is Model  # by reference, from __main__
    return scale(model)
"""

# Prints once if the main module runs once.
CODE = f"""
print("main runs", flush=True)
{DEFINITIONS}
print("result", fit(train).return_value)
"""


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.count("main runs") == 1
    assert done.stdout.splitlines()[-1].endswith("result 21")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_script(tmp_path: Path, method: str) -> None:
    script = write(tmp_path / "script.py", CODE)
    check(run(script, tmp_path / "runs", DRAY_START_METHOD=method))


def python(arguments: list[str], tmp_path: Path, text: str | None = None) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(tmp_path / "runs"),
        cwd=tmp_path,
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    check(done)


def test_options_of_python_are_those_of_workers_too(tmp_path: Path) -> None:
    """Also of those that are no forks of the script, such as the server of spawned ones."""
    code = "print(fit(lambda: [sys.flags.optimize, *sys.warnoptions, *sys._xoptions]).return_value)"
    script = write(tmp_path / "script.py", code)
    done = subprocess.run(
        [sys.executable, "-O", "-W", "ignore::ImportWarning", "-X", "utf8", str(script)],
        env=environment(tmp_path / "runs", DRAY_START_METHOD="spawn", DRAY_PROGRESS="0"),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[1, 'ignore::ImportWarning', 'utf8']\n", done.stderr


def test_standard_input(tmp_path: Path) -> None:
    python(["-"], tmp_path, PRELUDE + CODE)


def test_command(tmp_path: Path) -> None:
    python(["-c", PRELUDE + CODE], tmp_path)


def test_module(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    write(package / "program.py", CODE)
    python(["-m", "package.program"], tmp_path)


def test_read_eval_print_loop(tmp_path: Path) -> None:
    blocks = PRELUDE + CODE.replace("\n\n", "\n").replace("\ndef ", "\n\ndef ")
    blocks = blocks.replace("\nclass ", "\n\nclass ").replace("\nprint(", "\n\nprint(")
    blocks = blocks.replace("\n\n    def", "\n    def")
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        env={**environment(tmp_path / "runs"), "PYTHONSTARTUP": ""},
        input=blocks + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.count("main runs") == 1, done.stderr
    assert "result 21" in done.stdout, done.stderr


def test_notebook(tmp_path: Path) -> None:
    """A real Jupyter kernel, as a notebook has it: threads run in the driver, main has no file."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(text) for text in (PRELUDE, CODE)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    os.environ["STORAGE"] = str(tmp_path / "runs")
    try:
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    finally:
        del os.environ["STORAGE"]
    text = "".join(output.get("text", "") for output in notebook.cells[1].outputs)
    assert text.count("main runs") == 1
    assert "result 21" in text


def test_function_from_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("def train():\n    return __name__\n")
    script = write(
        tmp_path / "script.py",
        """
        from work import train
        print("main runs")
        print("result", 21 if fit(train).return_value == "work" else "wrong")
        """,
    )
    check(run(script, tmp_path / "runs"))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_of_multiprocessing(tmp_path: Path, method: str) -> None:
    """What the script defines is of a module `__mp_main__` there, which workers cannot import."""
    script = write(
        tmp_path / "script.py",
        f"""
import multiprocessing
from typing import Generic, TypeVar
T = TypeVar("T")
{DEFINITIONS.replace("class Model:", "class Model(Generic[T]):")}
def in_a_task(model):
    return dray.get(dray.remote(scale).remote(model)), model

def child():
    value, model = dray.get(dray.remote(in_a_task).remote(Model(5)))
    print("task", value, type(model) is Model, flush=True)
    print("result", fit(train).return_value)

if __name__ == "__main__":
    print("main runs", flush=True)
    process = multiprocessing.get_context({method!r}).Process(target=child)
    process.start()
    process.join()
""",
    )
    done = run(script, tmp_path / "runs", DRAY_PROGRESS="0")
    check(done)
    assert "task 15 True" in done.stdout


def test_workers_are_where_the_driver_is(tmp_path: Path) -> None:
    """A worker has the driver's directory, variables and path of the moment fit() is called."""
    other = tmp_path / "other"
    other.mkdir()
    script = write(
        tmp_path / "script.py",
        f"""
        trainer = DataParallelTrainer(
            lambda: [os.getcwd(), os.environ["LATE"], sys.path[0]],
            run_config=RunConfig(storage_path=os.environ["STORAGE"]),
        )
        os.chdir({str(other)!r})
        os.environ["LATE"] = "set"
        sys.path.insert(0, "/late")
        print(trainer.fit().return_value)
        """,
    )
    done = run(script, tmp_path / "runs", DRAY_PROGRESS="0")
    assert done.stdout == f"{[str(other), 'set', '/late']}\n", done.stderr


def test_breakpoints_work_inline(tmp_path: Path) -> None:
    script = write(
        tmp_path / "debug.py",
        """
        def train():
            secret = 6 * 7
            breakpoint()
            return secret

        print("returned", fit(train, workers=0).return_value)
        """,
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(tmp_path / "runs"),
        input="p secret\ncontinue\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "(Pdb) 42" in done.stdout, done.stderr
    assert "returned 42" in done.stdout


def test_dray_engine_variable_chooses(tmp_path: Path) -> None:
    script = write(tmp_path / "pid.py", "print(fit(os.getpid).return_value == os.getpid())")
    assert "True" in run(script, tmp_path / "runs", DRAY_ENGINE="inline").stdout
    assert "False" in run(script, tmp_path / "runs").stdout
    wrong = run(script, tmp_path / "runs", DRAY_ENGINE="clutser")
    assert "DRAY_ENGINE='clutser' is not one of process, inline" in wrong.stderr


def test_ctrl_c_while_the_first_worker_starts_leaves_the_session_whole(tmp_path: Path) -> None:
    # Read by every interpreter that starts, so also by the one of the fork server, before dray.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if 'fork_server' in ' '.join(sys.orig_argv):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    script = write(
        tmp_path / "script.py",
        """
        import threading  # dray forks no process that has threads, and starts an interpreter
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        import dray
        print(dray.get(dray.remote(lambda: 3).remote()))
        """,
    )
    done = run(script, tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)
