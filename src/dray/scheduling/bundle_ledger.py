"""The ledger of a placement group, whose nodes are the bundles, wherever these are placed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dray.scheduling.ledger import Held, Ledger
from dray.scheduling.requests import Node, Request

# The label that has a bundle's number.
BUNDLE_LABEL = "dray.io/bundle"


class BundleLedger(Ledger):
    """The account of what is held of a group's bundles.

    A bundle is a node from the time it is asked for, since what it will hold is known then, and
    nothing is granted there before it is set aside. One whose node is lost is added once more.

    Args:
        bundles: Quantities of each bundle.
        devices: Names of resources that are devices.
    """

    def __init__(self, bundles: Sequence[Mapping[str, float]], devices: set[str]) -> None:
        super().__init__([], "make a placement group with larger bundles")
        self._bundles, self._devices = bundles, devices

    def expect(self, numbers: Sequence[int]) -> range:
        """Add bundles that are asked for; return their indices."""
        nodes = [
            Node(
                f"bundle {number}",
                "",
                dict(self._bundles[number]),
                {BUNDLE_LABEL: str(number)},
                {name: () for name in self._bundles[number] if name in self._devices},
            )
            for number in numbers
        ]
        with self._lock:
            added = self.add_nodes(nodes)
            self._unsettled.update(added)
        return added

    def settle_on(self, held: Held, added: range) -> None:
        """Say where bundles lie, and begin to grant there."""
        with self._lock:
            for index, real, devices in zip(added, held.nodes, held.devices, strict=True):
                bundle = self.nodes[index]
                labels = {**real.labels, **bundle.labels}
                self.nodes[index] = replace(
                    real, resources=bundle.resources, labels=labels, devices=devices
                )
            self._unsettled.difference_update(added)
        self._grant()

    def forgo(self) -> None:
        """Take away the bundles that are asked for."""
        for index in self._unsettled & self.living:
            self.remove_node(self.nodes[index].node_id)

    def everything(self) -> Request:
        """Return a request for all that the bundles have which are set aside."""
        left = [int(self.nodes[index].labels[BUNDLE_LABEL]) for index in sorted(self.living)]
        return Request(
            [self._bundles[number] for number in left],
            selectors=[{BUNDLE_LABEL: str(number)} for number in left],
        )
