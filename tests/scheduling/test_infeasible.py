"""What is proposed instead of a request that no node meets."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dray.errors import InfeasibleError
from dray.scheduling.ledger import Ledger
from dray.scheduling.placement import STRATEGIES
from dray.scheduling.requests import Node, Request

PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=4)


@given(
    PLACES,
    st.integers(1, 7),
    st.sampled_from([0, 0.5, 1, 2, 5]),
    st.sampled_from([0, 0.25, 0.6, 1, 2, 8]),
    st.sampled_from(STRATEGIES),
)
@example([(1, 4), (1, 2)], 1, 0, 8, "PACK")
@example([(1, 2), (1, 4)], 2, 0, 4, "PACK")
@example([(4, 0), (2, 0)], 2, 5, 0, "PACK")
def test_what_is_proposed_to_copy_fits(
    places: list[tuple[int, int]], workers: int, cpus: float, gpus: float, strategy: str
) -> None:
    book = Ledger(
        [
            Node(
                f"n{index}",
                "::1",
                {"CPU": cores, "GPU": devices},
                {},
                {"GPU": [*"0123"][:devices]} if devices else {},
            )
            for index, (cores, devices) in enumerate(places)
        ]
    )
    try:
        book.check(Request([{"CPU": cpus, "GPU": gpus}] * workers, strategy))
    except InfeasibleError as error:
        message, shortfall = str(error), error.shortfall
    else:
        return
    assert shortfall is not None
    proposed = shortfall.proposed
    if proposed:
        assert proposed != {"CPU": cpus, "GPU": gpus}
        book.check(Request([proposed] * workers, strategy))
    elif strategy == "PACK" and not gpus and any(cores for cores, _ in places):
        pytest.fail(f"there is something to propose: {message}")


@pytest.mark.parametrize(
    ("bundles", "resources", "proposed"),
    [
        (9, {"GPU": 1}, {"GPU": 0.33}),  # not 4/9: a GPU takes two of these
        (5, {"GPU": 1}, {"GPU": 0.5}),
        (3, {"GPU": 2}, {"GPU": 1}),
        (3, {"TPU": 4}, {"TPU": 2}),
        (3, {"HPU": 2}, {"HPU": 1}),
        (5, {"HPU": 1}, None),  # not shared
        (9, {"CPU": 1}, {"CPU": 0.44}),
    ],
)
def test_what_is_proposed_fits(
    bundles: int, resources: dict[str, float], proposed: dict[str, float] | None
) -> None:
    there = {"CPU": 4, "GPU": 4, "TPU": 8, "HPU": 4}
    devices = {name: [*"01234567"][: there[name]] for name in ("GPU", "TPU", "HPU")}
    book = Ledger([Node("n", "::1", there, {}, devices)])
    with pytest.raises(InfeasibleError, match="Ask for less, or") as refused:
        book.check(Request([resources] * bundles))
    shortfall = pickle.loads(pickle.dumps(refused.value)).shortfall  # as it comes from the hub
    assert shortfall.change == "less"
    assert shortfall.proposed == proposed
    book.check(Request([proposed or {}] * bundles))
