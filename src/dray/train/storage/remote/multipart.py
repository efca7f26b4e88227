"""Uploads to S3: each file is read once, in parts that are retried separately."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dray.errors import StorageError
from dray.train.storage.checksums import Fingerprint, named, new_digest
from dray.train.storage.place import RemotePath, missing
from dray.train.storage.remote.clients import AT_ONCE, IN_FLIGHT, PART, clients
from dray.train.storage.remote.retry import persistently

_MOST_PARTS = 10_000  # of one file: S3's limit


def upload_in_parts(
    source: str, target: RemotePath, sizes: Mapping[str, int], *, checksums: bool
) -> dict[str, Fingerprint]:
    """Upload files of a local directory into a folder of S3; return their fingerprints.

    Args:
        checksums: Whether a checksum of each is kept.

    Raises:
        StorageError: One cannot be read, or cannot be written there.
    """
    (client,) = clients(target.filesystem, sum(sizes.values()))
    files: list[_File] = []
    found: dict[str, Fingerprint] = {}
    with ThreadPoolExecutor(AT_ONCE, "dray-uploads") as pool:
        sender = _Sender(pool)
        try:
            for name, size in sizes.items():
                kind = _Large if size > PART else _File
                file = kind(target / name, size, client)
                files.append(file)
                parts = _parts(os.path.join(source, name), size, sender)
                found[name] = _send(parts, file, sender, checksums=checksums)
            sender.finish()
            list(pool.map(lambda file: file.complete(), files))
        except BaseException:
            sender.give_up()
            for file in files:
                file.abort()
            raise
    return found


def _parts(path: str, size: int, sender: _Sender) -> Iterator[bytes]:
    """Yield the content of a file, a part when there is room for it; of an empty one, nothing."""
    most = min(size, max(PART, -(-size // _MOST_PARTS)))
    with StorageError.instead(f"{path} cannot be read"), open(path, "rb", buffering=0) as file:
        left = size
        while True:
            sender.await_room(most)
            content = file.read(min(most, left))
            left -= len(content)
            yield content
            if not left or not content:
                return


def _send(parts: Iterator[bytes], file: _File, sender: _Sender, *, checksums: bool) -> Fingerprint:
    digest, size = new_digest() if checksums else None, 0
    for number, content in enumerate(parts):
        if digest is not None:
            digest.update(content)
        size += len(content)
        sender.send(file.put, number, content)
    return size, None if digest is None else named(digest)


class _File:
    """A file that is being uploaded, by one request."""

    def __init__(self, target: RemotePath, size: int, client: Any) -> None:
        self._target = target
        self._size = size
        self._client = client
        bucket, key, _ = target.filesystem.split_path(target.path)
        self._names = {"Bucket": bucket, "Key": key}

    def _ask(self, what: str, **options: Any) -> Any:
        def ask() -> Any:
            return self._client.call_s3(what, **self._names, **options)

        try:
            return persistently(f"{self._target} cannot be written", ask, bulk=True)
        except FileNotFoundError as error:
            if what == "complete_multipart_upload" and self._is_there():
                return None  # by an attempt whose answer was lost
            raise missing(self._target, error) from error

    def _is_there(self) -> bool:
        return self._target.parent.sizes().get(self._target.name) == self._size

    def put(self, number: int, content: bytes) -> None:
        """Upload a part, the first one being number 0."""
        assert not number
        self._ask("put_object", Body=content)

    def complete(self) -> None:
        """Make the file exist, when all parts are there."""

    def abort(self) -> None:
        """Give it up."""


class _Large(_File):
    """A file of several parts, which exists when all are there."""

    def __init__(self, target: RemotePath, size: int, client: Any) -> None:
        super().__init__(target, size, client)
        self._names["UploadId"] = self._ask("create_multipart_upload")["UploadId"]
        self._tags: dict[int, str] = {}

    def put(self, number: int, content: bytes) -> None:
        answer = self._ask("upload_part", PartNumber=number + 1, Body=content)
        self._tags[number] = answer["ETag"]

    def complete(self) -> None:
        parts = [{"PartNumber": n + 1, "ETag": tag} for n, tag in sorted(self._tags.items())]
        self._ask("complete_multipart_upload", MultipartUpload={"Parts": parts})

    def abort(self) -> None:
        # Its parts cost money until they are deleted; one of two attempts is what can be done.
        with contextlib.suppress(OSError):
            self._client.call_s3("abort_multipart_upload", **self._names)


class _Sender:
    """Requests that are under way, with so many bytes that memory is bounded."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._bytes = self._count = 0
        self._error: BaseException | None = None

    def await_room(self, size: int) -> None:
        """Wait until so many more bytes may be held, which the next `send` gives away.

        Raises:
            StorageError: A request has failed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or not self._count or self._bytes + size <= IN_FLIGHT
            )
            self._check()

    def send(self, put: Callable[[int, bytes], None], number: int, content: bytes) -> None:
        """Have a thread upload a part."""
        with self._changed:
            self._bytes += len(content)
            self._count += 1
        self._pool.submit(self._put, put, number, content)

    def _put(self, put: Callable[[int, bytes], None], number: int, content: bytes) -> None:
        error = self._error
        try:
            if error is None:
                put(number, content)
        except BaseException as raised:  # noqa: BLE001 (the thread that reads raises it)
            error = raised
        with self._changed:
            self._error = self._error or error
            self._bytes -= len(content)
            self._count -= 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is uploaded.

        Raises:
            StorageError: A request has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or not self._count)
            self._check()

    def give_up(self) -> None:
        """Begin nothing more."""
        with self._changed:
            self._error = self._error or StorageError("another file cannot be uploaded")

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
