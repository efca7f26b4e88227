"""Lanes to a storage far away: what bounds its traffic, and clients that share it.

fsspec's asynchronous file systems do all they do in one thread of the process, where what is sent
is signed, encrypted and copied byte by byte. A second client beside it has a thread of its own.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

# Large files go in parts of so many bytes, the least that S3 takes. Those under way have so many in
# all; what sends them holds a copy besides.
PART = 5 << 20
IN_FLIGHT = 4 * PART
# Requests under way at once, if they are of small files.
AT_ONCE = 16

# From so many bytes on, a second client is worth its making, which takes 0.1 s.
_MANY = 64 << 20
_LANES = 2
# Modules whose file systems are such; others have threads of their own, or need none.
_KNOWN = ("s3fs", "gcsfs", "adlfs")
_FILE_SYSTEMS = 4  # that a process keeps lanes for


def lanes(filesystem: Any, size: int) -> tuple[Any, ...]:
    """Return a file system, and if so many bytes are worth it, others of its kind beside it."""
    known = type(filesystem).__module__.partition(".")[0] in _KNOWN
    return (filesystem, *_beside(filesystem)) if known and size >= _MANY else (filesystem,)


@functools.lru_cache(_FILE_SYSTEMS)
def _beside(filesystem: Any) -> tuple[Any, ...]:
    return tuple(_like(filesystem) for _ in range(_LANES - 1))


def _like(filesystem: Any) -> Any:
    """Return a file system like another one, but for its thread."""
    import asyncio  # slow to import

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="dray-lane", daemon=True).start()
    options = {**filesystem.storage_options, "loop": loop, "skip_instance_cache": True}
    return type(filesystem)(*filesystem.storage_args, **options)
