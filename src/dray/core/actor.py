"""Actors as programs see them: classes to make them from, handles, and methods to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from dray import session
from dray.checks import check_namespace
from dray.compat.attributes import AbsentMember
from dray.compat.ids import Id
from dray.core.options import CALL, CALLS, actor_options, call_options, check_options, methods_of
from dray.core.signature import Signature
from dray.engines.runtime import ActorBackend, ActorOptions, Origin, Returned, Submit
from dray.errors import AbsentNameError, ArgumentTypeError, ConfigError

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    # Of the class. Strict checkers take `ActorHandle` for `ActorHandle[Any]`.
    C_co = TypeVarWithDefault("C_co", covariant=True, default=Any)
else:
    C_co = TypeVar("C_co", covariant=True)

F = TypeVar("F", bound=Callable[..., Any])


@overload
def method(function: F, /) -> F: ...
@overload
def method(**options: object) -> Callable[[F], F]: ...
def method(*functions: F, **options: object) -> Any:
    """Set options of an actor's method: `num_returns`, `concurrency_group`, retry.

    Args:
        *functions: The method, when used as a bare decorator, which sets nothing.
        **options: The options.

    Raises:
        ConfigError: An option is unknown.

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Splitter:
        ...     @dray.method(num_returns=2)
        ...     def split(self, text):
        ...         return text[:1], text[1:]
        >>> splitter = Splitter.remote()
        >>> dray.get(splitter.split.remote("word"))
        ['w', 'ord']
    """
    if functions and (len(functions) > 1 or options or not callable(functions[0])):
        raise ConfigError(
            "@dray.method takes options by name: @dray.method(num_returns=2), or just @dray.method"
        )
    options = check_options(options, CALL, CALLS)

    def mark(function: F) -> F:
        function.__dray_method__ = options  # type: ignore[attr-defined]
        return function

    return mark(functions[0]) if functions else mark


class ActorMethod:
    """A method of an actor; `.remote(...)` calls it, `.options(...)` changes how.

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Splitter:
        ...     def split(self, text):
        ...         return text[:1], text[1:]
        >>> splitter = Splitter.remote()
        >>> dray.get(splitter.split.options(num_returns=2).remote("word"))
        ['w', 'ord']
    """

    __slots__ = ("_actor", "_given", "_name", "_signature", "_submit")

    bind = AbsentMember()
    _remote = AbsentMember()

    def __init__(
        self,
        actor: ActorBackend,
        name: str,
        given: Mapping[str, object],
        signature: Signature | None,
    ) -> None:
        self._actor = actor
        self._name = name
        self._given = given
        self._signature = signature
        self._submit: Submit = actor.bind(name, call_options(name, given))

    if not TYPE_CHECKING:  # checkers refuse it themselves

        def __call__(self, *args: object, **kwargs: object) -> Any:
            """Refuse: an actor's method is not called directly."""
            raise ArgumentTypeError(
                f"method {self._name} of an actor cannot be called directly: use "
                f"{self._name}.remote(...) and dray.get(...) for its result"
            )

    def remote(self, *args: object, **kwargs: object) -> Returned:
        """Call the method; return a reference to its result, or as many as `num_returns` says.

        Raises:
            TypeError: The arguments do not fit the method.
            SerializationError: An argument cannot be pickled.
            PendingCallsLimitExceeded: The actor has too many waiting calls.
        """
        if self._signature is not None:
            self._signature.check(args, kwargs)
        return self._submit(args, kwargs)

    def options(self, **given: object) -> ActorMethod:
        """Return the same method with other options; None leaves one as it is."""
        changed = {name: value for name, value in given.items() if value is not None}
        return ActorMethod(self._actor, self._name, {**self._given, **changed}, self._signature)

    def __reduce__(self) -> tuple[object, ...]:
        return (ActorMethod, (self._actor, self._name, dict(self._given), None))


class ActorHandle(Generic[C_co]):
    """An actor, wherever it lives; its methods are attributes. It may be passed around.

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Counter:
        ...     def __init__(self):
        ...         self.count = 0
        ...     def add(self, n):
        ...         self.count += n
        ...         return self.count
        >>> counter = Counter.remote()
        >>> dray.get([counter.add.remote(n) for n in (1, 2, 3)])
        [1, 3, 6]
    """

    def __init__(
        self, actor: ActorBackend, signatures: Mapping[str, Signature] | None = None
    ) -> None:
        self._actor = actor
        self._signatures = signatures or {}

    def __getattr__(self, name: str) -> ActorMethod:
        given = self._actor.methods.get(name)
        if given is None:
            known = ", ".join(n for n in self._actor.methods if not n.startswith("_"))
            raise AbsentNameError(
                f"actor {self._actor.class_name} has no method {name!r}; it has {known}",
                owner=self._actor.class_name,
                absent=name,
            )
        found = ActorMethod(self._actor, name, given, self._signatures.get(name))
        self.__dict__[name] = found
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._actor.methods})

    @property
    def _actor_id(self) -> Id:
        return Id(self._actor.actor_id)

    _ray_actor_id = _actor_id

    def __reduce__(self) -> tuple[object, ...]:
        return (ActorHandle, (self._actor,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return repr(self._actor)


class ActorClassMetadata(NamedTuple):
    """The metadata of a class of actors, as far as programs written for Ray use it.

    Attributes:
        modified_class: The class as it was before it became one of actors.
        class_name: Its name.
    """

    modified_class: type
    class_name: str


class ActorClass(Generic[C_co]):
    """A class whose objects are actors; `.remote(...)` starts one, `.options(...)` changes how.

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Greeter:
        ...     def greet(self, name):
        ...         return f"hello {name}"
        >>> greeter = Greeter.options(name="greeter").remote()
        >>> dray.get(greeter.greet.remote("Ada"))
        'hello Ada'
    """

    bind = AbsentMember()
    _remote = AbsentMember()

    def __init__(
        self, kind: type[C_co], given: Mapping[str, object], origin: Origin | None = None
    ) -> None:
        self._hold(kind, given, origin or Origin())
        self.__doc__ = kind.__doc__
        _ = self._options, self._init, self._signatures  # what is wrong with them is said at once

    def _hold(self, kind: type, given: Mapping[str, object], origin: Origin) -> None:
        self._kind = kind
        self._origin = origin
        self._given = dict(given)
        self.__name__ = kind.__name__

    # When first used: a class that names its actors is unpickled before its methods are there.

    @cached_property
    def _options(self) -> ActorOptions:
        return actor_options(self._kind, self._given, self._origin)

    @cached_property
    def _init(self) -> Signature:
        kind: Any = self._kind
        init = kind.__init__ if kind.__init__ is not object.__init__ else lambda self: None
        return Signature(init, kind.__qualname__, skip_first=True)

    @cached_property
    def _signatures(self) -> Mapping[str, Signature]:
        found = {}
        for name, member in methods_of(self._kind):
            own = inspect.getattr_static(self._kind, name)
            static = isinstance(own, staticmethod | classmethod)
            found[name] = Signature(member, name, skip_first=not static)
        return found

    @property
    def __ray_actor_class__(self) -> type:
        return self._kind

    @property
    def __ray_metadata__(self) -> ActorClassMetadata:
        return ActorClassMetadata(self._kind, self._kind.__qualname__)

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Refuse: a class is derived from another one before it is made one of actors."""
        name = self._kind.__name__
        raise TypeError(
            f"a class cannot inherit from {name}, which is an actor class: remove @dray.remote "
            f"from {name}, and make its actors with dray.remote(...) where you need them"
        )

    if not TYPE_CHECKING:  # checkers refuse it themselves

        def __call__(self, *args: object, **kwargs: object) -> Any:
            """Refuse: an actor class is not called directly."""
            name = self._kind.__name__
            raise ArgumentTypeError(f"actors are not made by {name}(...): use {name}.remote(...)")

    def remote(self, *args: object, **kwargs: object) -> ActorHandle[C_co]:
        """Start an actor; return a handle at once.

        Raises:
            TypeError: The arguments do not fit `__init__`.
            InfeasibleError: No node can ever hold it.
            ConfigError: Its name is taken.
        """
        self._init.check(args, kwargs)
        runtime = session.current_runtime()
        create = runtime.bind_class(self._kind, self._options)
        return ActorHandle(create(args, kwargs), self._signatures)

    def options(self, **given: object) -> ActorClass[C_co]:
        """Return the same class with other options."""
        return ActorClass(self._kind, {**self._given, **given}, self._origin)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the class itself, such as a constant or a static method."""
        if name.startswith("_"):
            raise AttributeError(f"actor class {self.__name__} has no {name}")
        return getattr(self._kind, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._kind)})

    def __reduce__(self) -> tuple[object, ...]:
        return (_unpickled, (self._kind, self._given))

    def __repr__(self) -> str:
        return f"<actor class {self._kind.__qualname__}>"


def _unpickled(kind: type, given: Mapping[str, object]) -> ActorClass:
    found = ActorClass.__new__(ActorClass)
    found._hold(kind, given, Origin())
    return found


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return the actor of that name, which ends all the same when its makers' handles are gone.

    Args:
        name: Name given by `.options(name=...)`.
        namespace: The name's namespace; None is this program's.

    Raises:
        ConfigError: There is none (also a ValueError).

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Greeter:
        ...     def greet(self):
        ...         return "hello"
        >>> greeter = Greeter.options(name="named greeter").remote()
        >>> dray.get(dray.get_actor("named greeter").greet.remote())
        'hello'
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"an actor's name must be a non-empty string, not {name!r}")
    check_namespace(namespace)
    runtime = session.current_runtime()
    found = runtime.named_actor(name, namespace)
    if found is None:
        others = names_of_actors(namespace)
        raise ConfigError(
            f"no actor is called {name!r}"
            + (f" in namespace {namespace!r}" if namespace else "")
            + f": it was never made, or it is gone. Named actors: {', '.join(others) or 'none'}"
        )
    return ActorHandle(found)


def names_of_actors(namespace: str | None) -> list[str]:
    """Return the names of actors that live in a namespace; None is this program's."""
    runtime = session.current_runtime()
    own = namespace or runtime.execution_context().namespace
    return [entry["name"] for entry in runtime.named_actors() if entry["namespace"] == own]


def exit_actor() -> None:
    """End the actor that calls this, in a thread too, after the calls of it that run.

    Raises:
        ConfigError: The calling code runs in no actor.

    Example:
        >>> import dray
        >>> @dray.remote
        ... class Once:
        ...     def last_words(self):
        ...         dray.exit_actor()
        >>> once = Once.remote()
        >>> try:
        ...     dray.get(once.last_words.remote())
        ... except dray.exceptions.ActorDiedError:
        ...     print("gone")
        gone
    """
    runtime = session.current_runtime()
    if runtime.own_actor() is None:
        raise ConfigError("exit_actor(): this code does not run in an actor")
    runtime.exit_actor()
