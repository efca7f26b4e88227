"""Downloads of files whose addresses are in rows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs

from dray.checks import require
from dray.data.sources.base import Filesystem

_READERS = 16


def downloaded(uris: Sequence[str | None], filesystem: Filesystem = None) -> list[bytes | None]:
    """Return the contents of files; None for an address that is None or cannot be read.

    Args:
        uris: Paths on this machine, or URLs that fsspec supports.
        filesystem: A filesystem of Arrow or fsspec; default: the one that each address names.
    """

    def content(uri: str | None) -> bytes | None:
        if uri is None:
            return None
        with contextlib.suppress(OSError):  # as in Ray, an unreadable file gives None
            return _content(uri, filesystem)
        return None

    with ThreadPoolExecutor(_READERS, "dray-download") as readers:
        return list(readers.map(content, uris))


def _content(uri: str, filesystem: Filesystem) -> bytes:
    if isinstance(filesystem, pa.fs.FileSystem):
        inner = uri.rpartition("://")[2]
        with filesystem.open_input_stream(inner, compression=None) as file:
            content: bytes = file.read()
            return content
    if filesystem is None and "://" not in uri:
        return Path(uri).expanduser().read_bytes()
    require("fsspec", "fsspec")
    import fsspec

    on: Any = filesystem or fsspec.core.url_to_fs(uri)[0]
    found: bytes = on.cat_file(on._strip_protocol(uri))
    return found
