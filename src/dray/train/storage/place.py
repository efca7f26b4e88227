"""A place: the location of a run, a checkpoint or one of its files, on this machine or remote."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dray.errors import StorageError
from dray.train.storage.openers import regular
from dray.train.storage.remote.retry import persistently

# Those that have no folders, and show an object to others when it is whole.
_FLAT = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "tos", "memory"}


@dataclass(frozen=True)
class RemotePath:
    """A path on a file system of fsspec. Credentials are the file system's, and are not shown.

    Attributes:
        path: The path within the file system, as `bucket/prefix/name`.
    """

    path: str
    filesystem: Any = field(repr=False, hash=False)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.path.rstrip('/')}/{name}", self.filesystem)

    def __str__(self) -> str:
        url = self.filesystem.unstrip_protocol(self.path)
        assert isinstance(url, str)
        return url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The path without its last part."""
        return RemotePath(self.path.rstrip("/").rpartition("/")[0], self.filesystem)

    def read_bytes(self) -> bytes:
        """Return what the file holds.

        Raises:
            FileNotFoundError: There is none.
            StorageError: It cannot be read.
        """
        # Else s3fs asks for the size of each file first, to read large ones in parts at once.
        known = inspect.signature(getattr(self.filesystem, "_cat_file", self.filesystem.cat_file))
        options = {"max_concurrency": 1} if "max_concurrency" in known.parameters else {}
        content = persistently(
            f"{self} cannot be read", lambda: self.filesystem.cat_file(self.path, **options)
        )
        assert isinstance(content, bytes)
        return content

    def read_part(self, start: int, end: int, way: Any) -> bytes:
        """Return the bytes of the file from one position to another.

        Args:
            way: Reads them: the file system, or another client of the same storage.

        Raises:
            FileNotFoundError: There is none.
            StorageError: It cannot be read.
        """
        # Without this, fsspec reads from pyarrow what begins at 0 by a stream, which cannot seek.
        options = {"seekable": True} if self._is_arrows else {}
        content = persistently(
            f"{self} cannot be read",
            lambda: way.cat_file(self.path, start=start, end=end, **options),
            bulk=True,
        )
        assert isinstance(content, bytes)
        return content

    @property
    def _is_arrows(self) -> bool:
        return type(self.filesystem).__module__.endswith("arrow")

    def write_bytes(self, content: bytes) -> None:
        """Write the file, whole or not at all.

        Raises:
            StorageError: It cannot be written.
        """
        try:
            persistently(f"{self} cannot be written", lambda: self.put(content))
        except FileNotFoundError as error:
            raise missing(self, error) from error

    def put(self, content: bytes) -> None:
        """Write the file, whole or not at all, by one attempt; what is raised is the storage's."""
        if not self._has_folders:
            self.filesystem.pipe_file(self.path, content)
            return
        draft = f"{self.path}.draft"
        self._put_draft(draft, content)
        replace = {"overwrite": True} if self.is_renamed_whole else {}
        self.filesystem.mv(draft, self.path, **replace)

    def create(self, content: bytes) -> bool:
        """Write a file that must not be there yet, whole or not at all, by one attempt.

        Returns:
            Whether it is certain that nobody else has made the file: False where the storage cannot
            refuse to write over one, so that two that come in the same instant are not told apart.

        Raises:
            FileExistsError: It is there.
        """
        if not self._has_folders:
            try:
                self.filesystem.pipe_file(self.path, content, mode="create")
            except (TypeError, NotImplementedError):  # it cannot refuse
                self._check_absent()
                self.put(content)
                return False
            return True
        self._check_absent()
        draft = f"{self.path}.{os.urandom(8).hex()}"
        self._put_draft(draft, content)
        try:
            self.filesystem.mv(draft, self.path)
        except FileExistsError:
            self.filesystem.rm_file(draft)
            raise
        return True

    def _put_draft(self, draft: str, content: bytes) -> None:
        self.filesystem.makedirs(self.parent.path, exist_ok=True)
        self.filesystem.pipe_file(draft, content)

    def _check_absent(self) -> None:
        if self.exists():
            raise FileExistsError(str(self))

    def delete(self, *, recursive: bool = False) -> None:
        """Delete the file, or the folder with all that is in it, which may be gone already.

        Raises:
            StorageError: It cannot be deleted.
        """

        def ask() -> None:
            try:
                if recursive:
                    self.filesystem.invalidate_cache()
                    self.filesystem.rm(self.path, recursive=True)
                else:
                    self.filesystem.rm_file(self.path)
            except FileNotFoundError:
                return
            except OSError:  # so does pyarrow say on HDFS that there is nothing
                if not self._is_arrows or self.filesystem.exists(self.path):
                    raise

        persistently(f"{self} cannot be deleted", ask)

    def rename(self, target: RemotePath) -> None:
        """Give this folder another name, which nothing has, in one step; for `is_renamed_whole`.

        Raises:
            StorageError: That cannot be done.
        """

        def ask() -> None:
            try:
                self.filesystem.mv(self.path, target.path)
            except (FileNotFoundError, FileExistsError):
                if self.exists() or not target.exists():
                    raise  # else an attempt succeeded that seemed to fail

        persistently(f"{self} cannot be renamed to {target}", ask)

    @property
    def _inner(self) -> Any:
        inner = self.filesystem
        while not self._is_arrows and hasattr(inner, "fs"):
            inner = inner.fs  # it shows a part of that one
        return inner

    @property
    def is_renamed_whole(self) -> bool:
        """True if a folder gets another name in one step, which moves no bytes: on HDFS."""
        return type(self._inner).__module__.partition(".")[0] == "hdfs_native"

    @property
    def _has_folders(self) -> bool:
        """Return whether folders must be made, and half a file can be seen, as with SFTP."""
        protocol = self._inner.protocol
        return self._is_arrows or _FLAT.isdisjoint(
            {protocol} if isinstance(protocol, str) else protocol
        )

    def make_folder(self) -> None:
        """Make this folder on a storage that has folders, as HDFS does.

        Raises:
            StorageError: It cannot be made.
        """
        if self._has_folders:
            persistently(
                f"{self} cannot be made", lambda: self.filesystem.makedirs(self.path, exist_ok=True)
            )

    def make_folders(self, names: Iterable[str]) -> None:
        """Make this folder and those in it that files of these names lie in; as `make_folder`."""
        for folder in sorted({os.path.dirname(name) for name in names}):
            (self / folder if folder else self).make_folder()

    def names(self) -> list[str]:
        """Return the names in this folder; none if there is no such folder.

        Raises:
            StorageError: It cannot be read.
        """

        def ask() -> list[str]:
            self.filesystem.invalidate_cache()
            return list(self.filesystem.ls(self.path, detail=False))

        try:
            found = persistently(f"{self} cannot be listed", ask)
        except FileNotFoundError:
            return []
        names = (each.rstrip("/").rpartition("/")[2] for each in found)
        return [name for name in names if name and name != self.name]

    def sizes(self) -> dict[str, int]:
        """Return the files below this folder, relative to it, with their sizes.

        Raises:
            StorageError: They cannot be listed.
        """

        def ask() -> dict[str, dict[str, Any]]:
            self.filesystem.invalidate_cache()
            return dict(self.filesystem.find(self.path, detail=True))

        try:
            found = persistently(f"{self} cannot be listed", ask)
        except FileNotFoundError:
            return {}
        start = len(self.path.strip("/")) + 1
        names = {path: path.lstrip("/")[start:] for path in found}
        return {
            name: int(found[path]["size"] or 0)
            for path, name in names.items()
            if name and not name.endswith("/")  # else it marks a folder
        }

    def is_dir(self) -> bool:
        """Return whether there are files below this path.

        Raises:
            StorageError: That cannot be found out.
        """
        return bool(self.sizes())

    def exists(self) -> bool:
        """Return whether there is such a file or folder.

        Raises:
            StorageError: That cannot be found out.
        """

        def ask() -> bool:
            self.filesystem.invalidate_cache()
            return bool(self.filesystem.exists(self.path))

        return persistently(f"{self} cannot be looked at", ask)


Place = Path | RemotePath


def missing(place: RemotePath, error: FileNotFoundError) -> StorageError:
    """Return the error for a file that cannot be written because its bucket is not there."""
    return StorageError(
        f"{place} cannot be written: {error}; make the bucket, or give another storage_path"
    )


def content_of(place: Place) -> bytes:
    """Return what a file holds.

    Raises:
        OSError: There is none, it is no file, or cannot be read.
    """
    if isinstance(place, RemotePath):
        return place.read_bytes()
    with open(place, "rb", opener=regular) as file:
        return file.read()


def path_within(place: Place) -> str:
    """Return a place's path within its file system."""
    return place.path if isinstance(place, RemotePath) else str(place)


def modules_of(place: Place) -> tuple[str, ...]:
    """Return the modules that a process imports to reach a place."""
    return (type(place.filesystem).__module__,) if isinstance(place, RemotePath) else ()


_kept: dict[int, Any] = {}


def _keep_clients_of_hdfs() -> None:
    """Hold from now on the clients that fsspec holds, which forgets all in a fork.

    One that is freed waits for the threads of its own, which a fork has not: it would wait for
    ever.
    """
    module = sys.modules.get("hdfs_native.fsspec")
    for kind in () if module is None else (module.HdfsFileSystem, module.ViewfsFileSystem):
        _kept.update((id(client), client) for client in kind._cache.values())


os.register_at_fork(before=_keep_clients_of_hdfs)
