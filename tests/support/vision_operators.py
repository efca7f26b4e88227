"""The folder of `beside_torch`, first on the path of a process that imports torchvision."""

from __future__ import annotations

import sys
from pathlib import Path


def declare() -> None:
    """Has torchvision import beside a torch without CUDA; workers on Ray have the folder last."""
    sys.path.insert(0, str(Path(__file__).with_name("beside_torch")))
