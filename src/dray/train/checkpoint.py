"""A checkpoint: a directory of files, here or on a storage far away, referred to by its path."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dray.compat.attributes import with_absent_members
from dray.errors import ConfigError, StorageError, shown
from dray.train.storage.checkpoint_files import METADATA, METADATA_DRAFT, list_files, without_own
from dray.train.storage.copies import Care, copy_file
from dray.train.storage.filesystem import arrow_filesystem, place_at, shown_filesystem
from dray.train.storage.manifest import Committed
from dray.train.storage.paths import check_directory, local_path
from dray.train.storage.place import Place, RemotePath, content_of, path_within
from dray.train.storage.remote.downloads import downloaded, fetch


@with_absent_members
class Checkpoint:
    """A reference to a directory that holds a checkpoint.

    Two checkpoints are equal if they refer to the same directory.

    Args:
        path: The directory, or its URL, such as `s3://bucket/prefix`.
        filesystem: A file system of pyarrow or fsspec, on which `path` lies.

    Attributes:
        path: The directory's path within its file system, as a string: absolute if that is the
            local one, `bucket/prefix` without `s3://` if it is another.

    A checkpoint of a run that `Result` has read from the disk is compared with its checksums when
    it is first used, which takes as long as reading it: its `path`, `as_directory` and the rest
    then raise StorageError if a file is not as it was committed.

    Raises:
        ConfigError: `path` is something else, or `filesystem` is none of pyarrow or fsspec.
        MissingDependencyError: The package that reads such a URL is not installed.

    Example:
        >>> import os, tempfile
        >>> from dray.train import Checkpoint
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = open(os.path.join(directory, "model.pt"), "w").write("weights")
        ...     with Checkpoint.from_directory(directory).as_directory() as path:
        ...         os.listdir(path)
        ['model.pt']
    """

    def __init__(self, path: str | os.PathLike[str], filesystem: object = None) -> None:
        self._place: Place = place_at(path, filesystem, "path", "filesystem")
        self._filesystem = filesystem
        self._unread: Committed | None = None

    @property
    def filesystem(self) -> Any:
        """The file system of `path`: the one that was given, or one of pyarrow.

        Raises:
            MissingDependencyError: None was given, and pyarrow is not installed.
        """
        return arrow_filesystem(self._place) if self._filesystem is None else self._filesystem

    @classmethod
    def at(cls, place: Place) -> Checkpoint:
        """Return a reference to a checkpoint at a place, for dray's own use."""
        checkpoint = cls.__new__(cls)  # what `__init__` looks at is known, of many in a run
        checkpoint._place, checkpoint._filesystem, checkpoint._unread = place, None, None
        return checkpoint

    @classmethod
    def of_run(cls, committed: Committed, *, verified: bool) -> Checkpoint:
        """Return a reference to a checkpoint of a run, for dray's own use.

        Args:
            committed: The checkpoint.
            verified: Whether its files are known to be as they were committed.
        """
        checkpoint = cls.at(committed.path)
        if not verified and not isinstance(committed.path, RemotePath):
            checkpoint._unread = committed
        return checkpoint

    @property
    def place(self) -> Place:
        """Its place, without a look at what is there; for dray's own use."""
        return self._place

    @property
    def _path(self) -> str:
        return path_within(self._place)

    @property
    def path(self) -> str:
        """The directory's path within its file system, as a string."""
        if self._unread is not None:
            check_directory(self._path)
            damaged = self._unread.first_damaged_file()
            if damaged is not None:
                raise StorageError(
                    f"the checkpoint {self._path} is damaged: {damaged} has changed since it was "
                    "committed. Use another one of Result.best_checkpoints; fit() under the "
                    "name of this run resumes from the newest sound one"
                )
            self._unread = None
        return self._path

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Return a checkpoint that refers to a directory; nothing is copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint's files.

        The copy is yours: it is no checkpoint of the run that has the original, nor, in the
        directory of another run, one of that.

        Args:
            path: Target directory, made if missing; default: a new temporary directory, which is
                yours to delete.

        Returns:
            The directory with the copy.

        Raises:
            StorageError: The checkpoint's directory does not exist, is a file, or holds a damaged
                file; or the copy cannot be written.
        """
        if not isinstance(self._place, RemotePath):
            check_directory(self.path)
        given = None if path is None else local_path(path, "path")
        where = given or "a temporary directory"
        with (
            StorageError.instead(f"{self.path} cannot be copied to {where}"),
            contextlib.ExitStack() as undo,
        ):
            target = given or Path(tempfile.mkdtemp(prefix="dray-checkpoint-"))
            if given is None:
                undo.callback(shutil.rmtree, target, ignore_errors=True)
            if isinstance(self._place, RemotePath):
                fetch(self._place, target)
            else:
                list_files(self.path)  # raises if there is what cannot be copied
                shutil.copytree(
                    self.path,
                    target,
                    ignore=self._own_of,
                    copy_function=_copied,
                    dirs_exist_ok=True,
                )
                if given is None:
                    target.chmod(stat.S_IRWXU)  # whatever the mode of the original
            undo.pop_all()
        return str(target)

    def _own_of(self, directory: str, names: list[str]) -> set[str]:
        """Return the names in a directory that are no files of the checkpoint."""
        return set(names).difference(without_own(names)) if directory == self._path else set()

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Give the checkpoint as a local directory, to read only.

        One that lies far away is downloaded, once for all processes of a node, and compared with
        its checksums.

        Raises:
            StorageError: The checkpoint's directory does not exist, is a file, or holds a damaged
                file.
        """
        if isinstance(self._place, RemotePath):
            with downloaded(self._place) as directory:
                yield str(directory)
            return
        check_directory(self.path)
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Return the metadata that `set_metadata` stored, or an empty dict.

        Raises:
            StorageError: It cannot be read.
        """
        path = self._place / METADATA
        try:
            with StorageError.instead(f"{path} cannot be read"):
                text = content_of(path) if path.exists() else b"{}"
            metadata = json.loads(text)
        except ValueError as error:
            raise StorageError(
                f"{path} is damaged ({error}); the checkpoint's other files are not affected. "
                "set_metadata() writes it anew"
            ) from error
        if not isinstance(metadata, dict):
            raise StorageError(f"{path} holds no metadata; set_metadata() writes it anew")
        return metadata

    def set_metadata(self, metadata: Mapping[str, object]) -> None:
        """Store metadata with the checkpoint, as JSON, in place of what was there.

        Raises:
            ConfigError: JSON cannot say it.
            StorageError: It cannot be written.
        """
        if not isinstance(metadata, Mapping):
            raise ConfigError(f"metadata must be a dict, not {shown(metadata)}")
        if not isinstance(self._place, RemotePath):
            check_directory(self._path)
        try:
            text = json.dumps(dict(metadata))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"the metadata {shown(metadata)} cannot be stored as JSON: {error}"
            ) from error
        target = self._place / METADATA
        if isinstance(target, RemotePath):
            target.write_bytes(text.encode())
            return
        # Of a name of its own: all ranks may do so in a directory that they share.
        draft = target.with_name(f"{METADATA_DRAFT}-{os.urandom(4).hex()}")
        with StorageError.instead(f"{target} cannot be written"):
            draft.write_text(text, encoding="utf-8")
            draft.replace(target)

    def update_metadata(self, metadata: Mapping[str, object]) -> None:
        """Add to the stored metadata; keys given here win."""
        if not isinstance(metadata, Mapping):
            raise ConfigError(f"metadata must be a dict, not {shown(metadata)}")
        self.set_metadata({**self.get_metadata(), **metadata})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._path)

    def __fspath__(self) -> str:
        if isinstance(self._place, RemotePath):
            raise ConfigError(
                f"the checkpoint {self._place} is not a directory of this machine; read it with "
                "`with checkpoint.as_directory() as path:`"
            )
        return self.path

    def __repr__(self) -> str:
        kind = shown_filesystem(self._place)
        return f"{type(self).__name__}(filesystem={kind}, path={self._path})"


def _copied(source: str, target: str) -> str:
    copy_file(source, target, Care(flush=False, checksums=False))
    return target
