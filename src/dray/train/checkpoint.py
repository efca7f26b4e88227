"""A checkpoint: a directory of files, referred to by its path."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dray.train.filesystem import check_filesystem, local_filesystem
from dray.train.run_directory import check_directory, local_path

_METADATA = ".metadata.json"


class Checkpoint:
    """A reference to a directory that holds a checkpoint.

    Two checkpoints are equal if they refer to the same directory.

    Args:
        path: The directory.
        filesystem: A local file system of pyarrow or fsspec, on which it lies.

    Attributes:
        path: The directory's absolute path, as a string.

    Raises:
        ConfigError: `path` is something else, such as a URL, or `filesystem` is not local.

    Example:
        >>> import os, tempfile
        >>> from dray.train import Checkpoint
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = open(os.path.join(directory, "model.pt"), "w").write("weights")
        ...     with Checkpoint.from_directory(directory).as_directory() as path:
        ...         os.listdir(path)
        ['model.pt']
    """

    def __init__(self, path: str | os.PathLike[str], filesystem: Any = None) -> None:
        check_filesystem(filesystem, "filesystem")
        self.path = str(local_path(path, "path"))
        self._filesystem = filesystem

    @property
    def filesystem(self) -> Any:
        """The file system of `path`: the one that was given, or pyarrow's local one.

        Raises:
            MissingDependencyError: None was given, and pyarrow is not installed.
        """
        return local_filesystem() if self._filesystem is None else self._filesystem

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Returns a checkpoint that refers to a directory; nothing is copied."""
        return cls(path)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copies the checkpoint's files.

        Args:
            path: Where to, made if missing; default: a new temporary directory, which is yours to
                delete.

        Returns:
            The directory with the copy.

        Raises:
            StorageError: The checkpoint's directory does not exist, or is a file.
        """
        check_directory(self.path)
        target = tempfile.mkdtemp(prefix="dray-checkpoint-") if path is None else os.fspath(path)
        shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Gives the checkpoint as a local directory, to read only.

        Raises:
            StorageError: The checkpoint's directory does not exist, or is a file.
        """
        check_directory(self.path)
        yield self.path

    def get_metadata(self) -> dict[str, Any]:
        """Returns the metadata that `set_metadata` stored, or an empty dict."""
        try:
            text = (Path(self.path) / _METADATA).read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        metadata: dict[str, Any] = json.loads(text)
        return metadata

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Stores metadata with the checkpoint, as JSON, in place of what was there."""
        target = Path(self.path) / _METADATA
        draft = target.with_suffix(".draft")
        draft.write_text(json.dumps(dict(metadata)), encoding="utf-8")
        draft.replace(target)

    def update_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Adds to the stored metadata; keys given here win."""
        self.set_metadata({**self.get_metadata(), **metadata})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Checkpoint) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"{type(self).__name__}(filesystem=local, path={self.path})"
