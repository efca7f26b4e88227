"""Figures of the code in src/dray for docs/design.md: sizes, functions, and uses of `Any`."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "dray"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> Iterator[Function]:
    """Yield every function of a module, including methods and nested functions."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def length(function: Function) -> int:
    """Return the number of lines of a function without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return lines
    docstring = function.body[0]
    return lines - ((docstring.end_lineno or 0) - docstring.lineno + 1)


def count_any(tree: ast.Module) -> int:
    """Return the number of uses of `Any`, without imports and docstrings."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def room(path: Path) -> str:
    """Return the directory of src/dray that a file is in, or "top level"."""
    first, *rest = path.relative_to(SOURCE).parts
    return first if rest else "top level"


def measure(files: dict[Path, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table in docs/design.md."""
    lines = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    found = {f"{path.stem}.{f.name}": length(f) for path in files for f in functions(files[path])}
    longest = max(found, key=found.__getitem__)
    folders = Counter(path.parent for path in files if path.name != "__init__.py")
    folder, most = folders.most_common(1)[0]
    p90 = lines[len(lines) * 9 // 10]
    yield "files, lines in `src/dray`", f"{len(files)}, {sum(lines):,}"
    spread = f"{statistics.median(lines):.0f}, {p90}, {lines[-1]}"
    yield "lines of a file: median, p90, largest", spread
    yield "longest function without its docstring", f"{found[longest]} (`{longest}`)"
    yield "files in the largest flat folder", f"{most} (`{folder.relative_to(SOURCE)}`)"
    yield "`Any` per 100 functions", f"{any_per_100(files):.0f}"


def any_per_100(files: dict[Path, ast.Module]) -> float:
    """Return the number of uses of `Any` per hundred functions."""
    number = sum(1 for tree in files.values() for _ in functions(tree))
    return 100 * sum(map(count_any, files.values())) / max(number, 1)


def main() -> int:
    """Print the rows, and the uses of `Any` in each directory."""
    paths = sorted(SOURCE.rglob("*.py"))
    files = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    for name, value in measure(files):
        print(f"| {name} | {value} |")
    for name in sorted({room(path) for path in paths}):
        own = {path: tree for path, tree in files.items() if room(path) == name}
        count = sum(map(count_any, own.values()))
        print(f"  Any in {name}: {count}, {any_per_100(own):.0f} per 100 functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
