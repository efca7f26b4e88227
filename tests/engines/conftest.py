"""A session of the inline engine, for the tests of that engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dray


@pytest.fixture
def inline_session(no_leaks: None) -> Iterator[None]:
    """A session with four CPUs, of which nothing may be left after the test."""
    dray.shutdown()
    dray.init(engine="inline", num_cpus=4, labels={"zone": "a"})
    yield
    dray.shutdown()
