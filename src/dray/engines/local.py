"""What the engines of one machine share: the machine's resources, in a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from dray.engines.contract import Engine, Node, Reservation
from dray.engines.ledger import Ledger


class LocalEngine(Engine):
    """An engine of this machine alone."""

    def __init__(self, node: Node) -> None:
        self._ledger = Ledger([node])

    def nodes(self) -> list[Node]:
        return list(self._ledger.nodes)

    def available(self) -> dict[str, float]:
        return self._ledger.available()

    def check(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> None:
        self._ledger.check(bundles, strategy)

    def reserve(self, bundles: Sequence[Mapping[str, float]], strategy: str) -> Future[Reservation]:
        return self._ledger.reserve(bundles, strategy)
