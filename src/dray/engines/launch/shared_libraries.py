"""The shared library of PyTorch, loaded by a thread beside imports that do not need it.

Mapping, relocating and initialising its 400 MB takes a fifth of a second, during which
`import torch` holds the GIL. `dlopen` called through ctypes does not hold it. So other modules can
be imported meanwhile. Modules that load a library themselves would wait for `dlopen`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from dray.engines.rpc.actor_host import import_quietly

# A module that imports others which take as long, and need nothing of PyTorch.
_OF, _BESIDE = "torch._dynamo", ("sympy",)
# The libraries of the standard library that it loads.
_EXTENSIONS = (
    *("_bisect", "_bz2", "_decimal", "_lzma", "_opcode", "_posixsubprocess", "_random", "_sha512"),
    *("_typing", "array", "cmath", "fcntl", "math", "select", "unicodedata", "zlib"),
)


def load_beside_imports(modules: Sequence[str]) -> None:
    """Load PyTorch's library while what `torch._dynamo` needs is imported.

    Args:
        modules: Modules that will be imported; nothing is done if `torch._dynamo` is not of them.
    """
    wanted = _OF in modules and "torch" not in sys.modules  # a fork of the driver may have it
    path = _library_of_torch() if wanted else None
    if path is None:
        return
    import_quietly(_EXTENSIONS)
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    # What fails fails again, in sight, when torch is imported.
    loading = threading.Thread(target=dlopen, args=(os.fsencode(path), os.RTLD_NOW))
    loading.start()
    import_quietly(_BESIDE)
    loading.join()


def _library_of_torch() -> str | None:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = os.path.join(os.path.dirname(spec.origin), "lib", "libtorch_cpu.so")
    return path if os.path.exists(path) else None
