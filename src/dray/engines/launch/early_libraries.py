"""Shared libraries of PyTorch, loaded by a thread beside imports that do not need them.

To load them takes a fifth of a second or more, in which Python could go on: the system's loader
needs no lock of Python's. But two loads wait for each other, so what is imported beside it is
Python code alone. The thread has ended before anything is forked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence

# In the order and with the modes in which `import torch` loads them; then it finds them loaded.
_DEPENDENCIES, _ALL = "libtorch_global_deps.so", "libtorch.so"
# A module whose imports take long, with one of them that is Python code, and what that loads.
_SLOW, _BESIDE, _LOADED_BY_IT = "torch._dynamo", "sympy", ("cmath", "decimal", "unicodedata")


@contextlib.contextmanager
def loading_beside(modules: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Load PyTorch's libraries by a thread; give the modules to import in the meantime.

    Args:
        modules: Modules that will be imported afterwards.
    """
    folder = None if "torch" in sys.modules or _SLOW not in modules else _folder_of_libraries()
    if folder is None:
        yield ()
        return
    for name in ("numpy", *_LOADED_BY_IT):
        with contextlib.suppress(Exception):  # it fails again, in sight, where it is needed
            importlib.import_module(name)
    thread = threading.Thread(target=_load, args=(folder,))
    thread.start()
    try:
        yield (_BESIDE,)
    finally:
        thread.join()


def _folder_of_libraries() -> str | None:
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("torch")
        for place in (spec and spec.submodule_search_locations) or ():
            folder = os.path.join(place, "lib")
            if os.path.isfile(os.path.join(folder, _ALL)):
                return folder
    return None


def _load(folder: str) -> None:
    import ctypes

    with contextlib.suppress(OSError):  # `import torch` says what is wrong
        ctypes.CDLL(os.path.join(folder, _DEPENDENCIES), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(os.path.join(folder, _ALL))
