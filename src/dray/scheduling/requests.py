"""Nodes, and requests for bundles of their resources, as plain data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dray.scheduling.labels import NODE_ID


@dataclass(frozen=True)
class Node:
    """One machine of the engine, and what it offers in all.

    Attributes:
        node_id: A name that is unique in this engine.
        address: Address on which collectives of this node listen.
        resources: Name to quantity: CPU in cores, memory in bytes, others as declared.
        labels: Name to value; requests select nodes by them.
        devices: Of accelerators the ids, by resource name, in the node's order; a cluster engine
            may not know them.
        families: Of accelerators the family's name, by resource name.
        leaves: Whether it is about to go, and takes nothing new.
        leaves_at: Time of that, in seconds since the epoch; None if it is not known.
    """

    node_id: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    families: Mapping[str, str] = field(default_factory=dict)
    leaves: bool = False
    leaves_at: float | None = None

    @property
    def title(self) -> str:
        return self.node_id if len(self.node_id) < 24 else f"{self.address} ({self.node_id[:8]})"

    @property
    def all_labels(self) -> dict[str, str]:
        """Its labels, with the one that has its id."""
        return {**self.labels, NODE_ID: self.node_id}


@dataclass(frozen=True)
class Slices:
    """Whole TPU slices for the first bundles of a request, a bundle a host.

    Attributes:
        kind: Their pod type, as in "v6e-16".
        spare: Chips of each host that its bundle does not ask for; they are held with it.
    """

    count: int
    kind: str
    hosts: int
    spare: int = 0

    @property
    def head(self) -> str:
        """The resource of which the first of several hosts has 1: who holds it has the slice."""
        from dray.accelerators.tpu_topology import head_resource  # rarely needed

        return head_resource(self.kind) if self.hosts > 1 else ""

    def held_at(self, bundle: int) -> dict[str, int]:
        """Return what is held for one of a request's bundles besides what it asks for."""
        if bundle >= self.count * self.hosts:
            return {}
        head = {self.head: 1} if self.head and bundle % self.hosts == 0 else {}
        return {"TPU": self.spare, **head}


@dataclass(frozen=True)
class Request:
    """Bundles of resources that are wanted together.

    Attributes:
        bundles: Name to quantity, for each bundle.
        strategy: Spread of the bundles over nodes: one of `placement.STRATEGIES`.
        selectors: For each bundle the labels that its node must have (`labels.py`); or empty.
        long_lived: Whether it is for something that does not end on its own, unlike a task.
        slices: Slices for the first bundles, whatever the strategy; None is any nodes.
    """

    bundles: Sequence[Mapping[str, float]]
    strategy: str = "PACK"
    selectors: Sequence[Mapping[str, str]] = ()
    long_lived: bool = True
    slices: Slices | None = None


@dataclass(frozen=True)
class PlacementPreview:
    """A preview of a reservation: the nodes of the bundles if they were reserved now.

    Attributes:
        nodes: For each bundle its node; None if they do not fit now.
        devices: For each bundle the ids of its accelerators, by resource name, where the engine
            knows them before it gives them out.
        free: For each node of the engine, what is free there now; empty if the bundles fit.
        chooser: Last word on the placement, if that is not the engine's own.
        taken: The devices that other programs of a node have, and who these are, in words.
    """

    nodes: Sequence[Node] | None = None
    devices: Sequence[Mapping[str, tuple[str, ...]]] = ()
    free: Sequence[tuple[Node, Mapping[str, float]]] = ()
    chooser: str = ""
    taken: Sequence[str] = ()

    @property
    def fits(self) -> bool:
        return self.nodes is not None


class Reservation(ABC):
    """The bundles of a request, set aside until they are released."""

    can_exchange: ClassVar[bool] = False

    @property
    def broken(self) -> bool:
        """True after a part of it is gone with a node that died; then ask for a new one."""
        return False

    @abstractmethod
    def release(self) -> None:
        """Give everything back. A second call does nothing."""

    def exchange(self, request: Request) -> Reservation | None:
        """Take what a request asks for in place of this, before anybody else can.

        Returns:
            The new reservation, and this one holds nothing any more. None if it does not fit now,
            or the engine cannot do that; then this one stays as it is.
        """
        return None
