"""Clients of a remote storage: limits of their traffic, and further clients beside the first.

fsspec's asynchronous file systems work in one thread of the process, which signs, encrypts and
copies all data. For S3, another client works in the threads that call it. For other storages, a
second client with a thread of its own works beside the first.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from dray.train.storage.remote.retry import persistently
from dray.train.storage.remote.s3_client import FILE_SYSTEMS, threaded

# Large files go in parts of so many bytes, which S3 wants to be 5 MiB or more; a request costs 3 ms
# of processor time besides. Those under way have so many in all.
PART = 8 << 20
IN_FLIGHT = 4 * PART
# Requests under way at once, if they are of small files.
AT_ONCE = 16

# From so many bytes on, a second client is worth its making, which takes 0.1 s.
_MANY = 64 << 20
# Modules whose file systems are such; others have threads of their own, or need none.
_KNOWN = ("gcsfs", "adlfs")


def takes_parts(filesystem: Any) -> bool:
    """Return whether a file system is s3fs's, which can be asked for each request."""
    return hasattr(filesystem, "call_s3")


def clients(filesystem: Any, size: int) -> tuple[Any, ...]:
    """Return what asks a storage: a file system, and if so many bytes are worth it, another.

    Raises:
        StorageError: There can be none, as without credentials.
    """
    if takes_parts(filesystem):
        way = persistently("S3 cannot be asked", lambda: threaded(filesystem, AT_ONCE), bulk=True)
        return (way,)
    known = type(filesystem).__module__.partition(".")[0] in _KNOWN
    return (filesystem, _beside(filesystem)) if known and size >= _MANY else (filesystem,)


@functools.lru_cache(FILE_SYSTEMS)
def _beside(filesystem: Any) -> Any:
    """Return a file system like another one, but for its thread."""
    import asyncio  # slow to import

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="dray-storage-client", daemon=True).start()
    options = {**filesystem.storage_options, "loop": loop, "skip_instance_cache": True}
    return type(filesystem)(*filesystem.storage_args, **options)
