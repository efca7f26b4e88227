"""Attributes of modules and classes: imported at first use, aliases, or absent with advice.

`absent_names.py` has the advice. A module gets its `__getattr__` by one line,
`attach_getattr(__name__)`, a class a member that it lacks by `AbsentMember()`.
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
    """Have a module answer for names that it does not have, or does not have yet.

    Python asks its `__getattr__` for what is missing, and, as soon as it has a `__path__`, also
    looks for a submodule of that name when `from module import name` finds no attribute.

    Args:
        module: Its `__name__`.
        later: Submodules that are imported when they are first used.
        names: Other modules that are, with the names of theirs that this one has too.
    """
    content = vars(sys.modules[module])
    submodules = frozenset(later)
    homes = {name: home for home, theirs in names.items() for name in theirs}

    def __getattr__(name: str) -> Any:
        if name in homes:
            home = import_module(homes[name])
            # All of them: nothing can be imported any more when Python ends and `__del__` wants it.
            for other in names[homes[name]]:
                content.setdefault(other, getattr(home, other))
            return content[name]
        if name in submodules or f"{module}.{name}" in ALIASES:
            return import_module(f"{module}.{name}")
        if sys._getframe(1).f_code.co_name == "_handle_fromlist":
            raise AttributeError(name)  # a submodule, or the finder below says what there is
        raise absent_name(module, name, __dir__())

    def __dir__() -> list[str]:
        return sorted({*content, *submodules, *homes})

    content.setdefault("__path__", [])
    content["__getattr__"], content["__dir__"] = __getattr__, __dir__


def _entries(owner: str) -> Mapping[str, Absent]:
    from dray.compat.absent_names import TABLE  # large, and most programs miss nothing

    return TABLE.get(owner, {})


def entry_of(owner: str, name: str) -> Absent | None:
    """Return the table's entry for a name that a module, class or function does not have."""
    return _entries(owner).get(name)


def absent_name(
    owner: str, name: str, known: Iterable[str] = (), called: str = ""
) -> AbsentNameError:
    """Return the error for a name that a module or class does not have.

    Args:
        owner: The module's dotted name, or the class's name.
        called: The name of a subclass that was asked.
    """
    entry = entry_of(owner, name)
    owner = called or owner
    if entry is None:
        text = f"module {owner!r} has no attribute {name!r}{nearest(name, known)}"
        return AbsentNameError(text, owner=owner, absent=name)
    kind = DeprecatedNameError if entry.deprecated else AbsentNameError
    return kind(sentence(owner, name, entry), owner=owner, absent=name)


class AbsentMember:
    """A member that a class does not have: in its body, `get_trial_id = AbsentMember()`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner.__name__, name

    def __get__(self, instance: object, owner: type) -> Any:
        raise absent_name(self._owner, self._name, called=owner.__name__)


def with_absent_members(kind: type[T]) -> type[T]:
    """Give a class an `AbsentMember` for each member of which the table knows."""
    for name in _entries(kind.__name__):
        member = AbsentMember()
        member.__set_name__(kind, name)
        setattr(kind, name, member)
    return kind


def sentence(owner: str, what: str, entry: Absent) -> str:
    """Return the message for an absent name."""
    gone = ", and Ray is giving it up as well" if entry.deprecated else ""
    return f"{owner} has no {what}{gone}: {entry.advice}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the question whether a similar name was meant; empty if there is none."""
    if name.startswith("_"):
        return ""
    public = sorted((other for other in known if not other.startswith("_")), reverse=True)
    candidates = {other.lower(): other for other in public}  # a class rather than its module
    import difflib

    near = difflib.get_close_matches(name.lower(), candidates, 1)
    return f"; did you mean {candidates[near[0]]}?" if near else ""
