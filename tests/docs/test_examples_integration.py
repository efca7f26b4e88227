"""The examples in docstrings that need a session, on the process engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import dray
from tests.support import examples


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, process_engine: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("HOME", str(tmp_path))  # where runs go that name no place
        yield


@pytest.mark.parametrize("file", [file for file in examples.files() if file not in examples.PURE])
def test_examples_are_right(file: str) -> None:
    for framework in ("torch", "jax", "xgboost", "lightgbm", "tensorflow", "dask"):
        if f"/{framework}" in file and importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    for example in examples.examples(file):
        if examples.starts_session(example):
            dray.shutdown()
        examples.check(example)
