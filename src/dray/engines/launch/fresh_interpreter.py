"""The command that starts a fork server, or a worker, in an interpreter of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dray.errors import EngineError


def interpreter(path: Sequence[str], *arguments: str) -> list[str]:
    """Return the command that runs `fork_server.main` with these arguments in a fresh interpreter.

    The import path goes along, so that dray and the user's modules are found wherever the driver
    found them, and so do options of Python (-O, -W, -X); and the command is no module, so that the
    new `__main__` is empty.

    Raises:
        EngineError: Python, within another program, does not know its own executable.
    """
    if not sys.executable:
        raise EngineError(
            "sys.executable is empty, as in programs that embed Python, so no worker can be "
            "started; set it to the path of a Python with the same packages"
        )
    import subprocess  # slow to import, and not needed by a fork

    # All else there is passed over by imports.
    names = [name for name in path if isinstance(name, str)]
    code = (
        f"import sys; sys.path[:] = {names!r}; "
        f"from dray.engines.launch.fork_server import main; main({list(arguments)!r})"
    )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", code]
