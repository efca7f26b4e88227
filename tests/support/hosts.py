"""What tests of made-up hosts share."""

from __future__ import annotations

from typing import Any

from dray.accelerators.family import Family, Found
from dray.testing import FakeHost


def numbered(pattern: str, count: int, text: str = "") -> dict[str, str]:
    return {pattern.format(i): text for i in range(count)}


def found(family: Family, **host: Any) -> Found:
    """What is found on a host; it is an error if that is nothing."""
    with FakeHost(**host):
        answer = family.find()
    assert answer is not None
    return answer


def nothing(family: Family, **host: Any) -> bool:
    """Whether nothing is found there."""
    with FakeHost(**host):
        return family.find() is None
