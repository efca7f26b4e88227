"""Things that a process says once."""

from __future__ import annotations

from dray.compat.attributes import attach_getattr

__all__ = ["disable_log_once_globally", "log_once", "reset_log_once"]

attach_getattr(__name__)

_said: set[str] = set()
_disabled = False


def log_once(key: str) -> bool:
    """Return whether this process asks with this key for the first time.

    Args:
        key: Message about to be logged.

    Example:
        >>> from dray.util import log_once
        >>> log_once("slow disk"), log_once("slow disk")
        (True, False)
    """
    if _disabled or key in _said:
        return False
    _said.add(key)
    return True


def reset_log_once(key: str | None = None) -> None:
    """Forget that a key, or with None any, has been asked for.

    Example:
        >>> from dray.util.debug import log_once, reset_log_once
        >>> log_once("full disk"), log_once("full disk")
        (True, False)
        >>> reset_log_once("full disk")
        >>> log_once("full disk")
        True
    """
    if key is None:
        _said.clear()
    else:
        _said.discard(key)


def disable_log_once_globally() -> None:
    """Have `log_once` return False in this process from now on.

    Example:
        >>> from dray.util import debug
        >>> debug.disable_log_once_globally()
        >>> debug.log_once("noisy disk")
        False
    """
    global _disabled
    _disabled = True
