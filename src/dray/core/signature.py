"""A check that arguments fit a function, made where it is called and not where it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from dray.errors import ArgumentTypeError


class Signature:
    """A function's parameters.

    Args:
        skip_first: Leave out the first parameter, `self`.
    """

    def __init__(
        self, function: Callable[..., object], name: str, *, skip_first: bool = False
    ) -> None:
        self._name = name
        self._signature: inspect.Signature | None = None
        self._fewest, self._most = 0, -1
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):  # some builtins do not tell
            return
        parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
        self._signature = signature.replace(parameters=parameters)
        by_position = [p for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        needs_names = any(p.kind == p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
        if not needs_names and not any(p.kind == p.VAR_POSITIONAL for p in parameters):
            self._fewest = sum(p.default is p.empty for p in by_position)
            self._most = len(by_position)

    def check(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Raise TypeError if the arguments do not fit."""
        if not kwargs and self._fewest <= len(args) <= self._most:
            return  # the common case, without the cost of binding
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ArgumentTypeError(f"{self._name}(): {error}") from None
