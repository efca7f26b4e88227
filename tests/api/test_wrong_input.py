"""Arguments of a kind that cannot be meant are refused by an error of dray's tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dray
import dray.train
from dray.errors import ArgumentTypeError, ConfigError
from dray.train import RunConfig, ScalingConfig


def _nothing() -> None:
    """Do nothing."""


class _Empty:
    """A class without methods."""


@pytest.mark.parametrize("call", [dray.get, dray.wait, dray.cancel, dray.kill])
def test_what_is_no_reference_is_refused_before_anything_starts(call: Callable[..., Any]) -> None:
    before = dray.is_initialized()
    with pytest.raises(ArgumentTypeError) as caught:
        call({"no": "reference"})
    assert isinstance(caught.value, TypeError)
    assert dray.is_initialized() == before


def test_only_functions_and_classes_become_remote() -> None:
    with pytest.raises(ArgumentTypeError, match="functions and classes"):
        dray.remote(42)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("target", "option", "value"),
    [
        *((_nothing, name, "1") for name in ("num_cpus", "memory", "max_retries", "max_calls")),
        *((_nothing, name, 3) for name in ("resources", "runtime_env", "label_selector", "name")),
        (_nothing, "num_returns", 1.5),
        (_nothing, "resources", {"disk": "1"}),
        (_nothing, "scheduling_strategy", 3),
        (_nothing, "retry_exceptions", 3),
        *((_Empty, name, "1") for name in ("max_restarts", "max_concurrency", "lifetime")),
        *((_Empty, name, 3) for name in ("namespace", "concurrency_groups")),
    ],
    ids=str,
)
def test_an_option_of_the_wrong_kind_is_a_type_error_too(
    target: Any, option: str, value: object
) -> None:
    """As on Ray."""
    with pytest.raises(TypeError) as caught:
        dray.remote(target).options(**{option: value})
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("value", ["", 7])
@pytest.mark.parametrize(
    "call",
    [
        lambda value: dray.init(namespace=value),
        lambda value: dray.remote(_Empty).options(name="named", namespace=value),
        lambda value: dray.get_actor("named", namespace=value),
    ],
)
def test_a_namespace_is_a_name(call: Callable[[Any], Any], value: object) -> None:
    dray.shutdown()
    with pytest.raises(ConfigError, match="namespace must be a non-empty string"):
        call(value)
    assert not dray.is_initialized()


@pytest.mark.parametrize(
    "call",
    [
        lambda value: dray.remote(_nothing).options(num_gpus=value),
        lambda value: dray.remote(_nothing).options(scheduling_strategy=value),
        lambda value: dray.remote(_nothing).options(resources=value),
        lambda value: ScalingConfig(placement_strategy=value),
        lambda value: RunConfig(callbacks=value),
    ],
)
def test_an_array_is_refused_by_name(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match="must not be an array"):
        call(np.array([1, 2]))
