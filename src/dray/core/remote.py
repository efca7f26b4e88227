"""`dray.remote`: functions that run as tasks, and classes whose objects are actors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

from dray import session
from dray.compat.attributes import AbsentMember
from dray.core.actor import ActorClass
from dray.core.options import task_options
from dray.core.signature import Signature
from dray.engines.object_ref import ObjectRef, ObjectRefGenerator
from dray.engines.runtime import Origin, Returned, Runtime, Submit
from dray.errors import ArgumentTypeError, ConfigError

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import Never

    # Of the function. Strict checkers take `RemoteFunction` for one of any function.
    P = typing_extensions.ParamSpec("P", default=...)
    R_co = typing_extensions.TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import ParamSpec

    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)

R = TypeVar("R")
T = TypeVar("T")


class RemoteFunction(Generic[P, R_co]):
    """A function that runs as a task; `.remote(...)` submits it, `.options(...)` changes how.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> dray.get(square.options(num_cpus=2).remote(3))
        9
    """

    bind = AbsentMember()
    _remote = AbsentMember()

    def __init__(
        self,
        function: Callable[P, R_co],
        given: Mapping[str, object],
        origin: Origin | None = None,
    ) -> None:
        self._function = function
        self._given = dict(given)
        self._options = task_options(function, given, origin or Origin())
        self._bound: tuple[Runtime, Submit] | None = None
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    @functools.cached_property
    def _signature(self) -> Signature:
        """Made when first used: one that calls itself is unpickled before its defaults are."""
        return Signature(self._function, self._options.name)

    if not TYPE_CHECKING:  # checkers refuse it themselves

        def __call__(self, *args: object, **kwargs: object) -> Any:
            """Refuse: a remote function is not called directly."""
            name = self._options.name
            raise ArgumentTypeError(
                f"remote function {name} cannot be called directly: use {name}.remote(...) and "
                f"dray.get(...) for its result, or {name}._function(...) to run it right here"
            )

    # Of functions without hints (only Any is a Never), of generators, and of all others: with
    # their own parameters, which editors show, and with references among the arguments.
    @overload
    def remote(self: RemoteFunction[..., Never], *args: object, **kwargs: object) -> Any: ...
    @overload
    def remote(  # type: ignore[overload-overlap]
        self: RemoteFunction[..., Iterator[R]], *args: object, **kwargs: object
    ) -> ObjectRefGenerator[R]: ...
    @overload
    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, *args: object, **kwargs: object) -> ObjectRef[R_co]: ...
    def remote(self, *args: object, **kwargs: object) -> Returned:
        """Submit a task; return a reference to its result, or as many as `num_returns` says.

        Raises:
            TypeError: The arguments do not fit the function.
            InfeasibleError: No node can ever run it.
            SerializationError: An argument cannot be pickled.
        """
        self._signature.check(args, kwargs)
        runtime = session.current_runtime()
        bound = self._bound
        if bound is None or bound[0] is not runtime:
            bound = self._bound = runtime, runtime.bind_function(self._function, self._options)
        return bound[1](args, kwargs)

    @overload
    def options(self, *, num_returns: object, **given: object) -> RemoteFunction[P, Any]: ...
    @overload
    def options(self, **given: object) -> RemoteFunction[P, R_co]: ...
    def options(self, **given: object) -> RemoteFunction[P, Any]:
        """Return the same function with other options."""
        return RemoteFunction(self._function, {**self._given, **given}, self._options.origin)

    def __reduce__(self) -> tuple[object, ...]:
        return (RemoteFunction, (self._function, self._given))

    def __repr__(self) -> str:
        return f"<remote function {self._options.name}>"


class Decorator(Protocol):
    """A decorator of functions and classes, which has their options."""

    @overload
    def __call__(self, target: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> RemoteFunction[P, R]: ...


@overload
def remote(target: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]
@overload
def remote(target: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(
    *, num_returns: object, **options: object
) -> Callable[[Callable[P, object]], RemoteFunction[P, Any]]: ...
@overload
def remote(**options: object) -> Decorator: ...
def remote(*targets: object, **options: object) -> Any:
    """Make a function a task, or a class one of actors; with or without options.

    Args:
        *targets: The function or class, when used as a bare decorator.
        **options: For tasks: `num_cpus` (1), `num_gpus`, `memory` (bytes), `resources`,
            `accelerator_type`, `label_selector`, `num_returns` (1, "streaming"), `max_calls`,
            `max_retries` (3), `retry_exceptions`, `name`, `scheduling_strategy`, `runtime_env`.
            For actors, instead of the calls' and retries' options: `name`, `namespace`,
            `get_if_exists`, `lifetime`, `max_restarts` (0), `max_task_retries` (0),
            `max_concurrency` (1), `max_pending_calls`, `concurrency_groups`.

    Raises:
        ConfigError: An option is unknown or has a value that is not allowed.
        ArgumentTypeError: The decorated object is neither a function nor a class.

    Example:
        >>> import dray
        >>> @dray.remote
        ... def square(x):
        ...     return x * x
        >>> dray.get([square.remote(i) for i in range(4)])
        [0, 1, 4, 9]
    """
    if targets and (len(targets) > 1 or options):
        raise ConfigError(
            "@dray.remote takes a function or class, or options by name: @dray.remote or "
            "@dray.remote(num_cpus=2)"
        )
    if targets:
        return _make(targets[0], {})
    if not options:
        raise ConfigError("@dray.remote without options is written without parentheses")
    return functools.partial(_make, given=options)


def _make(target: object, given: Mapping[str, object]) -> RemoteFunction | ActorClass:
    if inspect.isclass(target):
        return ActorClass(target, given)
    if isinstance(target, RemoteFunction | ActorClass):
        raise ArgumentTypeError(
            f"{target!r} is remote already; use .options(...) to change its options"
        )
    if callable(target) and hasattr(target, "__code__"):
        return RemoteFunction(target, given)
    raise ArgumentTypeError(f"@dray.remote is for functions and classes, not for {target!r}")
