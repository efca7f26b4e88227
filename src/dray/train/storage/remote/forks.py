"""Clients of HDFS, kept when a process forks.

A client that is freed waits for the threads of its own, which a fork has not: it would wait for
ever. And fsspec forgets all file systems in a fork, which frees those that nobody else holds.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_kept: dict[int, Any] = {}


def keep_clients() -> None:
    """Hold the clients that fsspec holds, from now on; called before each fork."""
    module = sys.modules.get("hdfs_native.fsspec")
    for kind in () if module is None else (module.HdfsFileSystem, module.ViewfsFileSystem):
        _kept.update((id(client), client) for client in kind._cache.values())


os.register_at_fork(before=keep_clients)
