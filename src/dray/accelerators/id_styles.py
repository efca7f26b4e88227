"""Formats of device ids that several families share: CUDA's format, or plain numbers."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from dray.accelerators.family import Family, Variables
from dray.accelerators.vendor_queries import Package, ask
from dray.errors import ConfigError


class CudaLike(Family):
    """A family whose ids are indices, or UUIDs of devices or slices; -1 means no device."""

    resource: ClassVar = "GPU"
    fractions: ClassVar = True
    torch_device: ClassVar = "cuda"
    backend: ClassVar = "nccl"

    def parse(self, text: str) -> list[str]:
        ids = [] if text.strip() == "-1" else super().parse(text)
        wrong = [i for i in ids if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", i)]
        if wrong:
            raise ConfigError(
                f"{text!r} names {wrong[0]!r}, which is neither the number nor the UUID of one "
                f"{self.title}; {self.variables[0]} is a list such as 0,1"
            )
        return ids


class Numbered(Family):
    """A family whose ids are whole numbers, written in ascending order.

    Ascend's runtime requires that order, and stops reading at a part that is no number. For the
    other families the order does not matter.
    """

    def parse(self, text: str) -> list[str]:
        ids = super().parse(text)
        wrong = [i for i in ids if not i.isdecimal()]
        if wrong:
            raise ConfigError(
                f"{text!r} names {wrong[0]!r}, which is not the number of a {self.title}; "
                f"{self.variables[0]} is a list such as 0,1"
            )
        return [str(int(i)) for i in ids]

    def show(self, ids: Sequence[str], environ: Mapping[str, str], count: int) -> Variables:
        return super().show(sorted(ids, key=int), environ, count)

    def _count(
        self, files: Sequence[str], package: str, question: Callable[[Package], int]
    ) -> tuple[int, str]:
        """Return the number of devices, from a package or else from files, and a problem or ""."""
        if not files and package not in sys.modules:
            return 0, ""
        answer, trouble = ask(package, question)
        if answer is None:
            return len(files), trouble
        if files and not answer:
            return 0, f"{files[0]} is there, but {package} sees no {self.title}"
        # Some packages leave out the devices that the variable hides.
        limited = self.variable(os.environ) in os.environ
        return max(answer, len(files)) if limited else answer, ""
