"""The families whose software reads device lists as CUDA does."""

from __future__ import annotations

import re
from typing import ClassVar

from dray.accelerators.family import Family
from dray.errors import ConfigError


class CudaLike(Family):
    """A family whose ids are indices, or UUIDs of devices or of slices of them; -1 is none."""

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
