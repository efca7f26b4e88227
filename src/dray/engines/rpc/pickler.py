"""The pickler of functions and values that travel: cloudpickle's, for modules of any type."""

from __future__ import annotations

import functools
import importlib
import io
import sys
from types import ModuleType
from typing import Any


@functools.cache
def pickler_class() -> Any:
    """Return the class, made when it is first needed: cloudpickle is slow to import."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """cloudpickle's, and modules of a type of their own are imported by name as others are.

        cloudpickle sends the modules that a function may mean: one that says `torch.distributed`
        and `model.config` may mean `torch.distributed.config`, whose type PyTorch has made.
        """

        def reducer_override(self, obj: Any) -> Any:
            special = isinstance(obj, ModuleType) and type(obj) is not ModuleType
            if special and obj.__name__ in sys.modules:
                return importlib.import_module, (obj.__name__,)
            return super().reducer_override(obj)

    return Pickler


def dumps(value: object) -> bytes:
    """Pickle a value, functions and classes of `__main__` by value."""
    file = io.BytesIO()
    pickler_class()(file, protocol=5).dump(value)
    return file.getvalue()
