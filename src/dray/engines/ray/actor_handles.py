"""Actors of a Ray cluster, as their handles describe them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from dray.engines.ray import ray_options
from dray.engines.ray.errors import refused
from dray.engines.ray.references import OfConnection, bare, bare_named, wrapper
from dray.engines.runtime import (
    NOT_METHODS,
    ActorBackend,
    Args,
    CallOptions,
    Described,
    Kwargs,
    Returned,
    Submit,
    no_concurrency_group,
)

# Begins the name of a method, all that a handle which was found by name knows of its class; the
# concurrency groups follow, a line each.
_GROUPS = "__dray_concurrency_groups__"


class RayObject(OfConnection, ActorBackend):
    """A handle of Ray's. Pickled with that inside, so Ray counts it wherever it travels."""

    def __init__(self, handle: Any) -> None:
        super().__init__(handle)
        self.class_name = handle._ray_actor_creation_function_descriptor.class_name

    @functools.cached_property
    def methods(self) -> Mapping[str, Mapping[str, Any]]:  # type: ignore[override]
        """The methods, with what `dray.method` gave them: the handle carries it as `ray.method`'s.

        A handle that was found by name knows nothing else of its class.
        """
        handle = self._rays
        return {
            name: _given(handle, name)
            for name in handle._ray_method_signatures
            if name not in NOT_METHODS and not name.startswith(_GROUPS)
        }

    def bind(self, method: str, options: CallOptions) -> Submit:
        name = f"{self.class_name}.{method}"
        self._check_group(options.concurrency_group)
        try:
            own = getattr(self.rays, method)
            submit = own.options(**ray_options.of_call(method, options)).remote
        except (ValueError, TypeError) as error:
            raise refused(error, name) from error
        wrap = wrapper(options.num_returns)

        def call(args: Args, kwargs: Kwargs) -> Returned:
            try:
                self.check()
                return wrap(submit(*bare(args), **bare_named(kwargs)))
            except Exception as error:
                raise refused(error, name, args=args, kwargs=kwargs) from error

        return call

    def _check_group(self, asked: str | None) -> None:
        """Refuse a concurrency group that is not there, for which Ray would abort the actor."""
        if not asked:
            return
        for name in self._rays._ray_method_signatures:
            if name.startswith(_GROUPS) and asked not in (groups := name.split("\n")[1:]):
                raise no_concurrency_group(f"actor {self.class_name}", asked, groups)

    @property
    def actor_id(self) -> str:
        text: str = self._rays._actor_id.hex()
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return (RayObject, (self.rays,))


def tell_groups(kind: type, groups: Iterable[str]) -> None:
    """Have all handles of a class's actors know the concurrency groups."""
    setattr(kind, "\n".join([_GROUPS, *groups]), _tell)


def _tell(self: object) -> None:
    """Do nothing: this method's name tells all."""


def _given(handle: Any, method: str) -> Described:
    num_returns = handle._ray_method_num_returns.get(method)
    if num_returns is None and handle._ray_method_is_generator.get(method):
        num_returns = "streaming"
    given = {
        "num_returns": num_returns,
        "max_task_retries": handle._ray_method_max_task_retries.get(method),
        "retry_exceptions": handle._ray_method_retry_exceptions.get(method),
    }
    return {name: value for name, value in given.items() if value is not None}
