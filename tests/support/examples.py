"""The examples in docstrings, found without importing anything."""

from __future__ import annotations

import ast
import doctest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"

# The files whose examples need no session of dray; those of the others run on the process engine.
PURE = (
    "accelerators/__init__",
    "accelerators/family",
    "accelerators/tpu_topology",
    "accelerators/type_names",
    "errors/base",
    "runtime_env",
    "scheduling/labels",
    "testing/fake_host",
    "train/checkpoint",
    "train/config",
    "train/scaling",
    "util/debug",
    "util/metrics",
    "util/serialization",
)


def files() -> list[str]:
    """Return the files of dray that have examples, without their ending."""
    found = []
    for path in sorted((SOURCE / "dray").rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            found.append(path.relative_to(SOURCE / "dray").with_suffix("").as_posix())
    return found


def examples(file: str) -> list[doctest.DocTest]:
    """Return the examples of a file; those that start a session of their own are the last ones."""
    path = SOURCE / "dray" / f"{file}.py"
    parser = doctest.DocTestParser()
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node) or ""
        if ">>> " in text:
            # What is defined there travels to workers by value, as from a script.
            scope = {"__name__": "__main__"}
            line = node.body[0].lineno
            found.append(parser.get_doctest(text, scope, node.name, str(path), line))
    return sorted(found, key=starts_session)


def starts_session(example: doctest.DocTest) -> bool:
    """Return whether an example calls `dray.init`."""
    return "dray.init(" in (example.docstring or "")


def check(example: doctest.DocTest) -> None:
    """Run an example as a reader would type it; raise AssertionError with what came instead."""
    said: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    failed, _ = runner.run(example, out=said.append)
    assert not failed, "".join(said)
