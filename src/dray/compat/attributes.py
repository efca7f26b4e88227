"""Attributes of modules and classes: imported at first use, aliases, or absent with advice.

`absent_names.py` has the advice. A module gets its `__getattr__` from the line
`attach_getattr(__name__)`, and a class gets an absent member from `AbsentMember()`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from dray.compat.module_aliases import ALIASES
from dray.errors import AbsentNameError, DeprecatedNameError

if TYPE_CHECKING:
    from dray.compat.absent_names import Absent

T = TypeVar("T")


def attach_getattr(
    module: str,
    later: Iterable[str] = (),
    names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Give a module a `__getattr__` for names that are imported later, or that are absent.

    Python calls `__getattr__` for a missing name. If the module has a `__path__`, then
    `from module import name` also looks for a submodule of that name.

    Args:
        module: The module's `__name__`.
        later: Submodules that are imported at their first use.
        names: Other modules that are imported at first use -> their names that this module exports.
    """
    content = vars(sys.modules[module])
    submodules = frozenset(later)
    homes = {name: home for home, theirs in names.items() for name in theirs}

    def __getattr__(name: str) -> Any:
        if name in homes:
            home = import_module(homes[name])
            # All names at once, because a `__del__` at Python's end cannot import any more.
            for other in names[homes[name]]:
                content.setdefault(other, getattr(home, other))
            return content[name]
        if name in submodules or f"{module}.{name}" in ALIASES:
            return import_module(f"{module}.{name}")
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise AttributeError(name)  # Python now looks for a submodule, and then asks our finder
        raise absent_name(module, name, __dir__())

    def __dir__() -> list[str]:
        return sorted({*content, *submodules, *homes})

    content.setdefault("__path__", [])
    content["__getattr__"], content["__dir__"] = __getattr__, __dir__


def _entries(owner: str) -> Mapping[str, Absent]:
    from dray.compat.absent_names import TABLE  # large, and most programs do not need it

    return TABLE.get(owner, {})


def entry_of(owner: str, name: str) -> Absent | None:
    """Return the table's entry for a name that a module, class or function lacks, or None."""
    return _entries(owner).get(name)


def absent_name(
    owner: str, name: str, known: Iterable[str] = (), called: str = ""
) -> AbsentNameError:
    """Return the error for a name that a module or class does not have.

    Args:
        owner: The module's dotted name, or the class's name.
        called: Name of the subclass that the program used, if any.
    """
    entry = entry_of(owner, name)
    owner = called or owner
    if entry is None:
        text = f"module {owner!r} has no attribute {name!r}{nearest(name, known)}"
        return AbsentNameError(text, owner=owner, absent=name)
    kind = DeprecatedNameError if entry.deprecated else AbsentNameError
    return kind(sentence(owner, name, entry), owner=owner, absent=name)


class AbsentMember:
    """A descriptor for an absent member of a class, as in `get_trial_id = AbsentMember()`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner.__name__, name

    def __get__(self, instance: object, owner: type) -> Any:
        raise absent_name(self._owner, self._name, called=owner.__name__)


def with_absent_members(kind: type[T]) -> type[T]:
    """Give a class an `AbsentMember` for each of its absent members in the table."""
    for name in _entries(kind.__name__):
        member = AbsentMember()
        member.__set_name__(kind, name)
        setattr(kind, name, member)
    return kind


def sentence(owner: str, what: str, entry: Absent) -> str:
    """Return the message for an absent name."""
    gone = ", and Ray has deprecated it" if entry.deprecated else ""
    return f"{owner} has no {what}{gone}: {entry.advice}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with a similar name; "" if there is none."""
    if name.startswith("_"):
        return ""
    public = sorted((other for other in known if not other.startswith("_")), reverse=True)
    candidates = {other.lower(): other for other in public}  # prefer a class to a module
    import difflib

    near = difflib.get_close_matches(name.lower(), candidates, 1)
    return f"; did you mean {candidates[near[0]]}?" if near else ""
