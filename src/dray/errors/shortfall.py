"""A shortfall: what nodes lack for a request, and the sentence that says so around some advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Parts of a request to change: "less" of it all, less of "each" bundle, fewer "slices", a
# slice of another "topology", other "labels", another accelerator "type", something "else", or no
# accelerator of this kind ("absent").
Change = Literal["less", "each", "slices", "topology", "labels", "type", "else", "absent"]


@dataclass(frozen=True)
class Shortfall:
    """The lack of nodes for a request that they can never meet.

    Attributes:
        reason: Resource that is lacking.
        nearest: The node that lacks least, with what it offers in all.
        change: Part of the request that could be changed.
        remedy: Advice on getting more.
        asked: The resources of the whole request.
        available: The resources of the nearest node.
        accelerator: With "absent", its resource name.
        on_this_machine: Whether the nodes are this machine, which `dray doctor` can describe.
        several: Whether there is more than one bundle.
        proposed: With "less", what each bundle like the first could have so that all fit; empty if
            there is nothing to propose.
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
        """Return all of it in words.

        Args:
            advice: Advice on another request, in the words of the caller.
        """
        doctor = ", look at `dray doctor`, which says what this machine has"
        helps = self.change == "absent" and self.on_this_machine
        return (
            f"The nodes cannot offer this: {self.reason}. Nearest node: {self.nearest}. "
            f"{advice or self.advice()}{doctor if helps else ''}, or {self.remedy}."
        )

    def advice(self) -> str:
        """Return what a task, an actor or a placement group could ask for instead."""
        words: dict[Change, str] = {
            "slices": "Ask for fewer slices",
            "topology": "Ask for another topology",
            "labels": "Ask for other labels (label_selector)",
            "type": "Ask for another accelerator_type",
            "absent": f"Ask for no {self.accelerator}",
        }
        return words.get(self.change, "Ask for less")
