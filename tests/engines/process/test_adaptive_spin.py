"""Waiting awake: where it is in vain nearly all waits sleep, and where it pays none does."""

from __future__ import annotations

from dray.engines.process.leader_follower import AdaptiveSpin


def awake_of(spin: AdaptiveSpin, waits: int, *, found: bool) -> int:
    """Return how many of some waits were spent awake."""
    looked: set[int] = set()

    def look(wait: int) -> bool:
        looked.add(wait)
        return found

    for wait in range(waits):
        spin.awake(lambda wait=wait: look(wait))  # type: ignore[misc]
    return len(looked)


def test_waits_in_vain_become_rare_and_those_that_pay_come_back() -> None:
    spin = AdaptiveSpin(cores=2)
    assert awake_of(spin, 100, found=True) == 100
    assert awake_of(spin, 1000, found=False) < 30
    assert awake_of(spin, 1000, found=True) > 900
    assert awake_of(AdaptiveSpin(cores=1), 10, found=True) == 0, "the awaited one needs the core"
