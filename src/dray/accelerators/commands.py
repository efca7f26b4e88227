"""Questions to vendors' command-line tools, which may be missing, fail or hang."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def output_of(*command: str, timeout_s: float = 5, environ: Mapping[str, str] | None = None) -> str:
    """Return what a command prints, or "" if it is not there, fails, or takes too long."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env=environ,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.strip()
