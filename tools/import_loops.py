"""Fails if modules of dray import each other in a loop, imports inside functions included."""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


def module_name(path: Path) -> str:
    """Returns the dotted name of a file below the source folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Imports(ast.NodeVisitor):
    """Collects what a module imports when it runs; `if TYPE_CHECKING` does not run."""

    def __init__(self, modules: set[str]) -> None:
        self._modules = modules
        self.names: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        """Leaves out what only type checkers see."""
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Takes `import a.b`."""
        self.names.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Takes `from a import b`; where b is a module, it is b that is needed, not all of a."""
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self.names.add(full if full in self._modules else node.module or "")


def graph() -> dict[str, set[str]]:
    """Returns module -> the modules of dray that it imports."""
    files = {module_name(path): path for path in SOURCE.rglob("*.py")}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        visitor = Imports(set(files))
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        edges[name] = {other for other in visitor.names if other in files} - {name}
    return edges


def main() -> int:
    """Prints a loop if there is one."""
    try:
        order = list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        print("import loop:", " -> ".join(error.args[1]))
        return 1
    print(f"{len(order)} modules, no import loops")
    return 0


if __name__ == "__main__":
    sys.exit(main())
