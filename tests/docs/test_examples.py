"""Every name that users import has an example, and the examples that need no session are right."""

from __future__ import annotations

import importlib
import inspect

import pytest

from tests.support import examples

# All but dray.cloudpickle, whose names are cloudpickle's, and modules of constants.
MODULES = (
    "dray",
    "dray.accelerators",
    "dray.actor",
    "dray.exceptions",
    "dray.remote_function",
    "dray.runtime_context",
    "dray.runtime_env",
    "dray.testing",
    "dray.train",
    "dray.train.backend",
    "dray.train.collective",
    "dray.train.jax",
    "dray.train.lightgbm",
    "dray.train.tensorflow",
    "dray.train.tensorflow.keras",
    "dray.train.torch",
    "dray.train.xgboost",
    "dray.util",
    "dray.util.actor_pool",
    "dray.util.debug",
    "dray.util.joblib",
    "dray.util.metrics",
    "dray.util.placement_group",
    "dray.util.queue",
    "dray.util.scheduling_strategies",
    "dray.util.serialization",
    "dray.util.state",
)


@pytest.mark.parametrize("module", MODULES)
def test_every_name_has_an_example(module: str) -> None:
    for framework in ("lightgbm", "tensorflow", "xgboost"):
        if framework in module:
            pytest.importorskip(framework)
    public = importlib.import_module(module)
    named = {f"{module}.{name}": getattr(public, name) for name in public.__all__}
    assert not [name for name, value in named.items() if not has_example(value)]


def has_example(value: object) -> bool:
    """Return whether it, a method of it, or the error that it is a kind of, has an example."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return any(">>> " in (base.__doc__ or "") for base in value.__mro__)
    if inspect.isclass(value):
        members = [value, *vars(value).values()]
        return any(">>> " in (getattr(member, "__doc__", "") or "") for member in members)
    return not callable(value) or ">>> " in (value.__doc__ or "")  # a constant needs none


@pytest.mark.parametrize("file", examples.PURE)
def test_examples_are_right(file: str) -> None:
    found = examples.examples(file)
    assert found
    for example in found:
        examples.check(example)
