"""Ray's errors in dray's tree."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("ray")

import ray.exceptions

from dray.engines.ray import errors
from dray.errors import (
    DrayError,
    NodeDiedError,
    ObjectLostError,
    RuntimeEnvSetupError,
    WorkerDiedError,
)


def rays_exceptions() -> list[type[BaseException]]:
    return [
        kind
        for _, kind in inspect.getmembers(ray.exceptions, inspect.isclass)
        if issubclass(kind, BaseException) and kind.__module__ == "ray.exceptions"
    ]


def test_every_exception_of_rays_has_an_entry() -> None:
    missing = {kind.__name__ for kind in rays_exceptions()} - set(errors.TABLE)
    assert not missing, "say in errors.TABLE what these are for users"
    for kind in rays_exceptions():
        raised = kind.__new__(kind)
        raised.args = ("what happened",)
        translated = errors.TABLE[kind.__name__](raised, "what happened")
        assert isinstance(translated, DrayError)
        assert "what happened" in str(translated)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ray.exceptions.NodeDiedError("gone"), NodeDiedError),
        (ray.exceptions.ActorUnavailableError("no answer", None), NodeDiedError),
        (ray.exceptions.OutOfMemoryError("killed for memory"), WorkerDiedError),
        (ray.exceptions.ObjectLostError("ab" * 28, "owner", "site"), ObjectLostError),
        (ray.exceptions.RuntimeEnvSetupError("no pip"), RuntimeEnvSetupError),
        (ray.exceptions.GetTimeoutError("late"), TimeoutError),
        (ray.exceptions.WorkerCrashedError(), WorkerDiedError),
        (ValueError("not Ray's"), DrayError),
    ],
)
def test_rays_errors_in_drays_tree(raised: Exception, kind: type[Exception]) -> None:
    translated = errors.translate(raised)
    assert isinstance(translated, kind)
    assert isinstance(translated, DrayError)
