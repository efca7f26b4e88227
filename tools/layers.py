"""Fails if modules of dray import each other in a loop, or one of a layer above their own.

Every import counts: at the top, inside functions, those that only type checkers see, and
`import_module("dray...")`; but not `from dray.a import b as b` of a package `dray.a`, which tells
type checkers of a module of its own that comes at first use.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"

# From the ground up, a line a layer. A module belongs to the longest name that it begins with. It
# may import from the layers below and from its own part; where a line begins with `*`, also from
# the other parts of its layer.
LAYERS = """
* version errors checks user_warnings settings host status interrupts compat
accelerators
scheduling
* engines.base engines.runtime engines.object_ref engines.runtime_env engines.local_packages
  engines.console engines.terminal_lines engines.result_lists engines.thread_limits
  engines.placement_group engines.torch_store
engines.local
* engines session compat.init_context
* engines.rpc engines.status_socket
engines.launch
engines.inline engines.process engines.ray
core
util
experimental
data.forms
data.sources
data.numbering
data
train.storage
* train.config train.data_config train.scaling train.checkpoint train.callback train.reported
  train.constants train.validation
* train.context train.worker
train.torch.devices
train.datasets
train.planning.ranks
train.run.output.line_dedup
train.run.worker_group
train.backend
train.planning
train.run
train
train.boosting
train.torch train.jax train.xgboost train.lightgbm train.tensorflow
train.lightning train.huggingface
testing
*
cli
__main__
"""

# A worker that trains something itself needs an engine, and that engine starts workers.
LOADED_LATE = {("dray.engines", "dray.engines.process.nested_engine")}


def module_name(path: Path) -> str:
    """Return the dotted name of a file below the source folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Imports(ast.NodeVisitor):
    """Collects the modules that a module imports."""

    def __init__(self, own: str, modules: set[str]) -> None:
        self._own = own
        self._modules = modules
        self.names: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        """Take `import a.b`."""
        self.names.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Take `from a import b`; where b is a module, it is b that is needed, not all of a."""
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if alias.asname == alias.name and node.module == self._own:
                continue
            self.names.add(full if full in self._modules else node.module or "")

    def visit_Call(self, node: ast.Call) -> None:
        """Take `import_module("a.b")`."""
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "import_module" and node.args and isinstance(node.args[0], ast.Constant):
            self.names.add(str(node.args[0].value))
        self.generic_visit(node)


def graph() -> dict[str, set[str]]:
    """Return module -> the modules of dray that it imports."""
    files = {module_name(path): path for path in SOURCE.rglob("*.py")}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        visitor = Imports(name, set(files))
        visitor.visit(ast.parse(path.read_text(encoding="utf-8")))
        edges[name] = {
            other
            for other in visitor.names
            if other in files and other != name and (name, other) not in LOADED_LATE
        }
    return edges


class Layers:
    """The layers of modules, from the ground up."""

    def __init__(self, text: str) -> None:
        self._of: dict[str, tuple[int, bool]] = {}
        for height, line in enumerate(text.strip().replace("\n  ", " ").split("\n")):
            free = line.startswith("*")
            for name in line.removeprefix("*").split() or [""]:
                self._of[f"dray.{name}".rstrip(".")] = (height, free)

    def part(self, module: str) -> str:
        """Return the longest name in the table that the module begins with."""
        while module not in self._of:
            module = module.rpartition(".")[0]
        return module

    def allows(self, module: str, other: str) -> bool:
        """Return whether the first may import the second."""
        part, below = self.part(module), self.part(other)
        (height, free), (depth, _) = self._of[part], self._of[below]
        return depth < height or part == below or (depth == height and free)


def main() -> int:
    """Print the loop, or the imports that point up, if there are any."""
    edges = graph()
    try:
        list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        print("import loop:", " -> ".join(error.args[1]))
        return 1
    layers = Layers(LAYERS)
    wrong = [
        f"{name} -> {other}"
        for name, others in sorted(edges.items())
        for other in sorted(others)
        if not layers.allows(name, other)
    ]
    for line in wrong:
        print(f"import of a higher layer: {line}")
    print(f"{len(edges)} modules, no import loops, {len(wrong)} imports that point up")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
