"""Actors of a Ray cluster as their handles know them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
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


class RayObject(OfConnection, ActorBackend):
    """A handle of Ray's. Pickled with that inside, so Ray counts it wherever it travels.

    Args:
        groups: The actor's concurrency groups; None if they are not known, as of one that was found
            by its name.
    """

    def __init__(self, handle: Any, groups: frozenset[str] | None = None) -> None:
        super().__init__(handle)
        self._groups = groups
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
            if name not in NOT_METHODS
        }

    def bind(self, method: str, options: CallOptions) -> Submit:
        name = f"{self.class_name}.{method}"
        group = options.concurrency_group
        if group and self._groups is not None and group not in self._groups:
            # Ray would abort the actor's process.
            raise no_concurrency_group(f"actor {self.class_name}", group, self._groups)
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

    @property
    def actor_id(self) -> str:
        text: str = self._rays._actor_id.hex()
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return (RayObject, (self.rays, self._groups))


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
