"""Imports of modules of dray that have no file: module aliases, and absent names with advice."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from dray.compat.attributes import entry_of, nearest, sentence
from dray.compat.module_aliases import ALIASES
from dray.errors import AbsentImportError, AbsentModuleError

_ROOT = __name__.partition(".")[0]


def install_finder() -> None:
    """Append the finder to Python's finders; a second call does nothing."""
    if not any(isinstance(finder, _LastFinder) for finder in sys.meta_path):
        sys.meta_path.append(_LastFinder())


class _AliasLoader:
    """A loader of modules that have the names of another module."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the alias the attributes of the other module."""
        other = import_module(ALIASES[module.__name__])

        def __getattr__(name: str) -> object:
            submodule = f"{module.__name__}.{name}"
            return import_module(submodule) if submodule in ALIASES else getattr(other, name)

        vars(module).update(
            __all__=other.__all__,
            __doc__=other.__doc__,
            __getattr__=__getattr__,
            __dir__=functools.partial(dir, other),
        )


class _LastFinder:
    """The last finder of modules: Python asks it for modules that no other finder has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find an alias; for another name raise an error, but only if it is being imported."""
        if fullname in ALIASES:
            return ModuleSpec(fullname, _AliasLoader(), is_package=True)  # type: ignore[arg-type]
        owner, _, name = fullname.rpartition(".")
        owner = ALIASES.get(owner, owner)
        if owner != _ROOT and not owner.startswith(f"{_ROOT}."):
            return None
        asking = _import_in_progress()
        if "_find_and_load_unlocked" not in asking:  # importlib.util.find_spec() only searches
            return None
        entry = entry_of(owner, name)
        near = nearest(name, dir(sys.modules[owner]))
        if "_handle_fromlist" in asking:  # Python would hide a ModuleNotFoundError here
            text = f"cannot import name {name!r} from {owner!r}{near}"
            kind = AbsentImportError
        else:
            text = f"No module named {fullname!r}{near}"
            kind = AbsentModuleError
        error = kind(
            text if entry is None else sentence(owner, name, entry), owner=owner, absent=name
        )
        error.name = fullname
        raise error


def _import_in_progress() -> set[str]:
    """Return the names of the functions of Python's import system on the stack."""
    frame = sys._getframe(2)
    names = set()
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        names.add(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names
