"""Arguments and options that functions or classes of dray lack, with their replacements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from dray.compat.attributes import entry_of, nearest, sentence
from dray.errors import AbsentArgumentError, DeprecatedArgumentError

F = TypeVar("F", bound=Callable[..., Any])


def check_arguments(
    callee: str, given: Mapping[str, object], known: Iterable[str], called: str = ""
) -> None:
    """Refuse arguments that a function or class does not have.

    Arguments of Ray pass if their value has no effect, such as `datasets=None`.

    Args:
        callee: Name of the function or class, such as "dray.init".
        given: Arguments beyond its parameters.
        called: Name of the subclass that was called, if any.

    Raises:
        AbsentArgumentError: An argument has an effect in Ray, or is unknown.
    """
    table, callee = f"{callee}()", called or callee
    owner = f"{callee}()"
    for name, value in given.items():
        entry = entry_of(table, name)
        if entry is None:
            near = nearest(name, known) or f"; it takes {', '.join(known)}"
            text = f"{owner} has no argument {name!r}{near}"
            raise AbsentArgumentError(text, owner=callee, absent=name)
        if not entry.is_unset(value):
            kind = DeprecatedArgumentError if entry.deprecated else AbsentArgumentError
            text = sentence(owner, f"argument {name!r}", entry)
            raise kind(text, owner=callee, absent=name)


def known_options(
    given: Mapping[str, object], known: Sequence[str], what: str
) -> dict[str, object]:
    """Check options, and return them without options of Ray whose values have no effect.

    Args:
        what: The owner of the options in messages and in the table, such as "tasks".
    """
    if set(known).issuperset(given):
        return dict(given)
    for name, value in given.items():
        entry = entry_of(what, name)
        if name in known or (entry is not None and entry.is_unset(value)):
            continue
        public = ", ".join(n for n in known if not n.startswith("_"))
        near = nearest(name, known)
        text = f"{what} have no option {name!r}"
        text += f"{near} There are: {public}" if near else f"; there are {public}"
        if entry is not None:
            text = f"{what} have no option {name!r}: {entry.advice}"
        raise AbsentArgumentError(text, owner=what, absent=name)
    return {name: value for name, value in given.items() if name in known}


def checked_arguments(callee: str) -> Callable[[F], F]:
    """Make a function or class refuse arguments that it does not have, with advice.

    Args:
        callee: Name of the function or class in programs and in the table.

    Example:
        @checked_arguments("RunConfig")
        @dataclass
        class RunConfig: ...
    """

    def decorate(target: F) -> F:
        import inspect

        function = target.__init__ if inspect.isclass(target) else target
        parameters = inspect.signature(function).parameters
        names = parameter_names(function)
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


def parameter_names(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's parameters, without `self` and `**others`."""
    import inspect

    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def _by_position(
    callee: str, names: Sequence[str], by_position: Sequence[str], args: Sequence[object]
) -> AbsentArgumentError:
    """Return the error for positional arguments that must be given by name."""
    taken = [name for name in by_position if name != "self"]
    kind = type(args[len(by_position)]).__name__
    text = (
        f"{callee}() takes {', '.join(taken)} by position; pass the {kind} after that by name, "
        f"as one of {', '.join(name for name in names if name not in taken)}"
    )
    return AbsentArgumentError(text, owner=callee, absent=kind)
