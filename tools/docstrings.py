"""A check of how docstrings and comments begin: no clause as a name, functions by imperatives."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPENINGS = {"What", "Who", "Which", "Whose", "How", "Where", "Why", "Whether"}
# An argument or attribute in a docstring; "Whether" is how a flag is described.
ENTRY = re.compile(rf"^ +\w+: (?:{'|'.join(sorted(OPENINGS - {'Whether'}))}) .*$", re.MULTILINE)
NO_VERBS = {
    "As",
    "Images",
    "Its",
    "Seconds",
    "Tasks",
    "Versions",
}  # these may open a function's docstring


def misnamed(path: Path) -> Iterator[str]:
    """Yield the place and first line of each docstring of a file that begins otherwise."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        kinds = (ast.Module, ast.ClassDef, *functions)
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if not text:
            continue
        first = text.split()[0].strip("`'\",.:")
        told = isinstance(node, functions) and first not in NO_VERBS
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
        if first in OPENINGS or (told and re.fullmatch(r"[A-Z][a-z]*[^s]s", first)):
            yield f"{place}: {text.splitlines()[0]}"
        yield from (f"{place}: {entry.strip()}" for entry in ENTRY.findall(text))


def clauses(path: Path) -> Iterator[str]:
    """Yield the comments of a module's names and sections that open with such a clause."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for line, (before, text) in enumerate(pairwise(["", *lines]), 1):
        opens = text.startswith("# ") and text.split()[1].strip("`'\",.:") in OPENINGS
        if opens and not before.startswith("#"):
            yield f"{path.relative_to(ROOT)}:{line}: {text}"


def main() -> int:
    """Print them."""
    folders = ("src", "tools", "benchmarks", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = [line for path in sorted(files) for line in (*misnamed(path), *clauses(path))]
    for line in found:
        print(line)
    if found:
        print("begin with a noun phrase (a module, a class) or an imperative (a function: Return)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
