"""The GPU of a Mac with Apple's own chip."""

from __future__ import annotations

from typing import ClassVar

from dray import host
from dray.accelerators.family import Family, Found
from dray.accelerators.vendor_queries import output_of


class Apple(Family):
    """The one GPU of a Mac with Apple's chip. No variable hides it."""

    name: ClassVar = "apple"
    title: ClassVar = "Apple GPU"
    resource: ClassVar = "GPU"
    fractions: ClassVar = True
    types: ClassVar = r"M\d|Apple-"
    torch_device: ClassVar = "mps"

    def find(self) -> Found | None:
        if not host.is_directory("System/Library/CoreServices"):
            return None
        chip = output_of("sysctl", "-n", "machdep.cpu.brand_string")
        # Older Macs have "Intel(R) Core...", and translated programs (Rosetta) see "VirtualApple".
        if not chip.startswith("Apple "):
            return None
        if "metal" not in output_of("system_profiler", "SPDisplaysDataType").lower():
            return None
        return Found(count=1, type=_type_of(chip), names=[chip])


def _type_of(chip: str) -> str | None:
    """Return "M1-Pro" for "Apple M1 Pro"."""
    words = chip.split()[1:3]
    if not words or not words[0].startswith("M") or not words[0][1:].isdigit():
        return None
    return "-".join(word for word in words if word == words[0] or word in ("Pro", "Max", "Ultra"))
