"""Openers for files whose names other users may have made: `open(path, opener=...)` takes them."""

from __future__ import annotations

import errno
import os
import stat


def regular(path: str, flags: int) -> int:
    """Open a file to read it, but no pipe, which has one wait, and no device, which may not end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "It is no file", path)


def unlinked(path: str, flags: int) -> int:
    """Open a file to write it, unless it is a link, which may lead anywhere, or an unread pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
