"""A shortfall: the resources that nodes lack for a request, and the error message about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# The change of a request that could help: "less" of everything, less of "each" bundle, fewer
# "slices", another "topology", other "labels", another accelerator "type", something "else", or no
# accelerator of this kind ("absent").
Change = Literal["less", "each", "slices", "topology", "labels", "type", "else", "absent"]


@dataclass(frozen=True)
class Shortfall:
    """The resources that nodes lack for a request that they can never meet.

    Attributes:
        reason: The lacking resource, in words.
        nearest: The node that lacks least, with all its resources, in words.
        change: The change of the request that could help.
        remedy: Advice on getting more resources.
        asked: The resources of the whole request.
        available: The resources of the nearest node.
        accelerator: Resource name of the accelerator, if `change` is "absent".
        on_this_machine: Whether the nodes are this machine, which `dray doctor` can describe.
        several: Whether the request has more than one bundle.
        proposed: If `change` is "less", the resources for each bundle like the first with which all
            bundles fit; empty if there is no such proposal.
    """

    reason: str
    nearest: str
    change: Change
    remedy: str
    asked: Mapping[str, float]
    available: Mapping[str, float]
    accelerator: str
    on_this_machine: bool
    several: bool
    proposed: Mapping[str, float] | None

    def sentence(self, advice: str = "") -> str:
        """Return the error message.

        Args:
            advice: The caller's advice on another request; "" gives the advice for tasks.
        """
        doctor = ", look at `dray doctor`, which says what this machine has"
        helps = self.change == "absent" and self.on_this_machine
        return (
            f"The nodes cannot offer this: {self.reason}. Nearest node: {self.nearest}. "
            f"{advice or self.advice()}{doctor if helps else ''}, or {self.remedy}."
        )

    def advice(self) -> str:
        """Return advice on another request for a task, an actor or a placement group."""
        words: dict[Change, str] = {
            "slices": "Ask for fewer slices",
            "topology": "Ask for another topology",
            "labels": "Ask for other labels (label_selector)",
            "type": "Ask for another accelerator_type",
            "absent": f"Ask for no {self.accelerator}",
        }
        return words.get(self.change, "Ask for less")
