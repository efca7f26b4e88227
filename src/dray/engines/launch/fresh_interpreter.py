"""The command that starts a fork server, or a worker, in an interpreter of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def interpreter(path: Sequence[str], *arguments: str) -> list[str]:
    """Return the command that runs `fork_server.main` with these arguments in a fresh interpreter.

    The import path goes along, so that dray and the user's modules are found wherever the driver
    found them; and the command is no module, so that the new `__main__` is empty.
    """
    code = (
        f"import sys; sys.path[:] = {list(path)!r}; "
        f"from dray.engines.launch.fork_server import main; main({list(arguments)!r})"
    )
    return [sys.executable, "-c", code]
