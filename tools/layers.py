"""A check that modules of dray have no import loops, and import only from their layer and below.

Every import counts: at the top of a module, inside functions, for type checkers only, and
`import_module("dray...")`. The exception is `from dray.a import b as b` in the package `dray.a`,
which tells type checkers of a submodule that is imported at first use.
"""

from __future__ import annotations

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"

# The layers from bottom to top, one on each line. A module belongs to the longest name here that
# its name begins with. It may import from lower layers and from its own part. If the line begins
# with `*`, it may also import from the other parts of its layer.
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

# A worker that runs a training of its own needs an engine, and that engine starts workers.
LOADED_LATE = {("dray.engines", "dray.engines.process.nested_engine")}


def module_name(path: Path) -> str:
    """Return the module name of a file below the source directory."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Imports(ast.NodeVisitor):
    """A collector of the modules that a module imports."""

    def __init__(self, own: str, modules: set[str]) -> None:
        self._own = own
        self._modules = modules
        self.names: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        """Add the modules of `import a.b`."""
        self.names.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Add the modules of `from a import b`: a.b if that is a module, else a."""
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if alias.asname == alias.name and node.module == self._own:
                continue
            self.names.add(full if full in self._modules else node.module or "")

    def visit_Call(self, node: ast.Call) -> None:
        """Add the module of `import_module("a.b")`."""
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
    """The layers of modules, from bottom to top."""

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
    """Print import loops and imports from higher layers; return 1 if there are any."""
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
