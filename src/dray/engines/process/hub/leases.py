"""Leases: resources that workers reserve for engines of their own, such as a task that trains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dray.engines.process.hub.hub import Hub
from dray.engines.process.hub.records import Client
from dray.errors import DrayError
from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.requests import Node, Request, Reservation


@dataclass(eq=False)
class LeasedReservation(Reservation):
    """Bundles of a ledger that another process has."""

    nodes: list[Node]
    devices: list[dict[str, tuple[str, ...]]]
    bundles: list[dict[str, float]]
    give_back: Callable[[], None] | None

    def release(self) -> None:
        give_back, self.give_back = self.give_back, None
        if give_back is not None:
            give_back()


class Leases:
    """Reserves from the session's ledger for other processes; what they hold ends with them."""

    def __init__(self, hub: Hub, ledger: Ledger) -> None:
        self._hub = hub
        self._ledger = ledger

    def on_reserve(
        self,
        client: Client,
        question: int,
        request: Request,
        purpose: Literal["reserve", "check", "preview"],
    ) -> None:
        try:
            if purpose == "preview":
                self._hub.reply(client, question, self._ledger.preview(request))
                return
            demand = self._ledger.check(request)
        except DrayError as error:
            self._hub.refuse(client, question, error)
            return
        if purpose == "check":
            self._hub.reply(client, question, None)
            return
        future = client.leases[question] = self._ledger.reserve_checked(demand)
        self._hub.when_granted(future, functools.partial(self._granted, client, question))

    def on_offers(self, client: Client, question: int) -> None:
        self._hub.reply(client, question, self._ledger.alive())

    def _granted(self, client: Client, question: int, held: Reservation) -> None:
        if question in client.leases:  # it still wants it
            assert isinstance(held, Held)
            self._hub.reply(client, question, (question, held.nodes, held.devices, held.bundles))

    def on_return(self, client: Client, question: int) -> None:
        self._hub.give_back(client, question)
