"""PyPI's torchvision beside a PyTorch for CPUs: it declares what its import misses, then is it.

On Linux, PyPI's torchvision is made for a torch with CUDA. Beside another one its C++ operators do
not load, and its import fails, and with it that of Lightning and of Transformers, which call none
of them. This folder stands before it on the path of tests that import those.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]
_spec = PathFinder.find_spec("torchvision", [p for p in sys.path if Path(p).resolve() != _HERE])
if _spec is None or _spec.loader is None:
    raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
_module = module_from_spec(_spec)
sys.modules["torchvision"] = _module
try:
    _spec.loader.exec_module(_module)
except RuntimeError:
    import torch

    library = torch.library.Library("torchvision", "DEF")  # as long as this module
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _spec.loader.exec_module(_module)
    _module.operators_declared_for_tests = library  # type: ignore[attr-defined]
