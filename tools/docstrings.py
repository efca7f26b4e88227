"""Fails if a docstring opens with a clause in place of the name of the thing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPENINGS = {"What", "Who", "Which", "Whose", "How", "Where", "Why", "Whether"}


def clauses(path: Path) -> Iterator[str]:
    """Yields the place and first line of each such docstring of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text and text.split()[0].strip("`'\",.:") in OPENINGS:
            line = getattr(node, "lineno", 1)
            yield f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"


def main() -> int:
    """Prints them."""
    folders = ("src", "tools", "benchmarks", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = [clause for path in sorted(files) for clause in clauses(path)]
    for clause in found:
        print(clause)
    if found:
        print("name the thing: a noun phrase for a module or class, an imperative for a function")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
