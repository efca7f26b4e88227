"""Calls of vendors' packages and tools, which may be missing, old or broken, or hang."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

# A vendor's package. Such packages have no types, and a machine has few of them installed.
Package: TypeAlias = Any


def ask(package: str, question: Callable[[Package], T]) -> tuple[T | None, str]:
    """Call a function with a vendor's package; return its result or None, and the problem or "".

    A package that is not installed is no problem.
    """
    try:
        return question(importlib.import_module(package)), ""
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.".startswith(f"{error.name}."):
            return None, ""
        return None, f"{package} fails: {error}"
    except Exception as error:  # noqa: BLE001 - drivers raise what they like
        return None, f"{package} fails: {type(error).__name__}: {error}"


def detail(package: Package, function: str, *arguments: object) -> Any:
    """Call a function of a vendor's package; return its result, or None if it fails.

    Not every device or driver version has every detail, and a device without a detail is still
    used.
    """
    try:
        return getattr(package, function)(*arguments)
    except Exception:  # noqa: BLE001 - drivers raise what they like
        return None


def output_of(*command: str, timeout_s: float = 5, environ: Mapping[str, str] | None = None) -> str:
    """Return a command's output; "" if the command is missing, fails, or takes too long."""
    import subprocess  # slow to import

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
