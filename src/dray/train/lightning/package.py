"""The package of Lightning that a process uses: `lightning.pytorch` or `pytorch_lightning`."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType

_NAMES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def load_lightning(part: str = "") -> ModuleType:
    """Import Lightning: the package that the process has imported already, else an installed one.

    Args:
        part: A module of the package, such as "strategies"; default: the package itself.
    """
    loaded = [module for name, module in _NAMES.items() if name in sys.modules]
    installed = (module for name, module in _NAMES.items() if find_spec(name) is not None)
    package = loaded[0] if loaded else next(installed)
    return importlib.import_module(f"{package}.{part}" if part else package)
