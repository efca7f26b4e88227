"""Answers for names, modules and arguments that dray does not have: what to use instead.

`absent.py` holds the sentences. A module answers with one line, `answer_for(__name__)`, a function
or class with a decorator, `@answers_arguments("dray.init")`, a class for a member that it lacks
with `AbsentMember()`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dray.aliases import ALIASES
from dray.errors import (
    AbsentArgumentError,
    AbsentImportError,
    AbsentModuleError,
    AbsentNameError,
    DeprecatedArgumentError,
    DeprecatedNameError,
)

if TYPE_CHECKING:
    from dray.absent import Absent

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_ROOT = __name__.partition(".")[0]


def answer_for(
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
            content[name] = found = getattr(import_module(homes[name]), name)
            return found
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
    from dray.absent import TABLE  # large, and most programs miss nothing

    return TABLE.get(owner, {})


def _entry(owner: str, name: str) -> Absent | None:
    return _entries(owner).get(name)


def absent_name(owner: str, name: str, known: Iterable[str] = ()) -> AbsentNameError:
    """Return the error for a name that a module or class does not have.

    Args:
        owner: The module's dotted name, or the class's name.
        name: Name of the missing attribute.
        known: Names it has.
    """
    entry = _entry(owner, name)
    if entry is None:
        text = f"module {owner!r} has no attribute {name!r}{_near(name, known)}"
        return AbsentNameError(text, owner=owner, absent=name)
    kind = DeprecatedNameError if entry.deprecated else AbsentNameError
    return kind(_sentence(owner, name, entry), owner=owner, absent=name)


class AbsentMember:
    """A member that a class does not have: in its body, `get_trial_id = AbsentMember()`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner.__name__, name

    def __get__(self, instance: object, owner: type) -> Any:
        raise absent_name(self._owner, self._name)


def answers_members(kind: type[T]) -> type[T]:
    """Give a class an `AbsentMember` for each member of which the table knows."""
    for name in _entries(kind.__name__):
        member = AbsentMember()
        member.__set_name__(kind, name)
        setattr(kind, name, member)
    return kind


def check_arguments(callee: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse arguments that a function or class does not have.

    Those of Ray's pass if they are as if they had been left out, such as `datasets=None`.

    Args:
        callee: The function's or class's name, as in "dray.init".
        given: Arguments beyond its parameters.
        known: The names of its parameters.

    Raises:
        AbsentArgumentError: One has a meaning in Ray, or has none at all.
    """
    owner = f"{callee}()"
    for name, value in given.items():
        entry = _entry(owner, name)
        if entry is None:
            near = _near(name, known) or f"; it takes {', '.join(known)}"
            text = f"{owner} has no argument {name!r}{near}"
            raise AbsentArgumentError(text, owner=callee, absent=name)
        if not entry.is_unset(value):
            kind = DeprecatedArgumentError if entry.deprecated else AbsentArgumentError
            text = _sentence(owner, f"argument {name!r}", entry)
            raise kind(text, owner=callee, absent=name)


def check_names(given: Mapping[str, object], known: Sequence[str], what: str) -> dict[str, object]:
    """Return options, checked, without those of Ray's that are as if they had been left out.

    Args:
        given: The options.
        known: The names of those that there are.
        what: Owner of them, as messages and the table call it, such as "tasks".

    Raises:
        AbsentArgumentError: One does not exist.
    """
    if set(known).issuperset(given):
        return dict(given)
    for name, value in given.items():
        entry = _entry(what, name)
        if name in known or (entry is not None and entry.is_unset(value)):
            continue
        public = ", ".join(n for n in known if not n.startswith("_"))
        near = _near(name, known)
        text = f"{what} have no option {name!r}"
        text += f"{near} There are: {public}" if near else f"; there are {public}"
        if entry is not None:
            text = f"{what} have no option {name!r}: {entry.advice}"
        raise AbsentArgumentError(text, owner=what, absent=name)
    return {name: value for name, value in given.items() if name in known}


def answers_arguments(callee: str) -> Callable[[F], F]:
    """Make a function or class answer for arguments that it does not have.

    Args:
        callee: Its name, as programs write it and as the table has it.

    Example:
        @answers_arguments("RunConfig")
        @dataclass
        class RunConfig: ...
    """

    def decorate(target: F) -> F:
        import inspect

        function = target.__init__ if inspect.isclass(target) else target
        parameters = inspect.signature(function).parameters
        names = [name for name in parameters if name != "self"]
        known = frozenset(names)
        by_position = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]

        @functools.wraps(function)
        def answering(*args: object, **kwargs: object) -> Any:
            if len(args) > len(by_position):
                raise _by_position(callee, names, by_position, args)
            if not known.issuperset(kwargs):
                further = {name: value for name, value in kwargs.items() if name not in known}
                check_arguments(callee, further, names)
                kwargs = {name: value for name, value in kwargs.items() if name in known}
            return function(*args, **kwargs)

        if inspect.isclass(target):
            target.__init__ = answering  # type: ignore[method-assign]
            return target
        return answering  # type: ignore[return-value]

    return decorate


def _by_position(
    callee: str, names: Sequence[str], by_position: Sequence[str], args: Sequence[object]
) -> AbsentArgumentError:
    """Return the error for arguments that a function or class takes by name alone."""
    taken = [name for name in by_position if name != "self"]
    kind = type(args[len(by_position)]).__name__
    text = (
        f"{callee}() takes {', '.join(taken)} by position; give the {kind} that comes after by "
        f"name: there are {', '.join(name for name in names if name not in taken)}"
    )
    return AbsentArgumentError(text, owner=callee, absent=kind)


def install() -> None:
    """Have imports of what is not there answered; a second call does nothing."""
    if not any(isinstance(finder, _Answers) for finder in sys.meta_path):
        sys.meta_path.append(_Answers())


class _Alias:
    """Makes a module that has the names of another one."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill it: whatever it is asked for, the other one answers."""
        other = import_module(ALIASES[module.__name__])
        vars(module).update(
            __all__=other.__all__,
            __doc__=other.__doc__,
            __getattr__=functools.partial(getattr, other),
            __dir__=functools.partial(dir, other),
        )


class _Answers:
    """The last finder of modules: what comes to it, nobody else has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find an alias; raise for another name that is imported, not when somebody looks."""
        if fullname in ALIASES:
            return ModuleSpec(fullname, _Alias(), is_package=True)  # type: ignore[arg-type]
        owner, _, name = fullname.rpartition(".")
        owner = ALIASES.get(owner, owner)
        if owner != _ROOT and not owner.startswith(f"{_ROOT}."):
            return None
        asking = _import_in_progress()
        if "_find_and_load_unlocked" not in asking:  # importlib.util.find_spec() just looks
            return None
        entry = _entry(owner, name)
        near = _near(name, dir(sys.modules[owner]))
        if "_handle_fromlist" in asking:  # Python would hide a ModuleNotFoundError here
            text = f"cannot import name {name!r} from {owner!r}{near}"
            kind = AbsentImportError
        else:
            text = f"No module named {fullname!r}{near}"
            kind = AbsentModuleError
        error = kind(
            text if entry is None else _sentence(owner, name, entry), owner=owner, absent=name
        )
        error.name = fullname
        raise error


def _import_in_progress() -> set[str]:
    """Return the names of the functions of Python's import that have led here."""
    frame = sys._getframe(2)
    names = set()
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        names.add(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names


def _sentence(owner: str, what: str, entry: Absent) -> str:
    gone = ", and Ray is giving it up as well" if entry.deprecated else ""
    return f"{owner} has no {what}{gone}: {entry.advice}"


def _near(name: str, known: Iterable[str]) -> str:
    if name.startswith("_"):
        return ""
    candidates = {other.lower(): other for other in known if not other.startswith("_")}
    import difflib

    near = difflib.get_close_matches(name.lower(), candidates, 1)
    return f"; did you mean {candidates[near[0]]}?" if near else ""
