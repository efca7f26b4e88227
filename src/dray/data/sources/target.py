"""Directories that rows are written to: what is there stays until all that is new is there.

Where files are renamed at once, new ones lie in a hidden directory until the last is complete.
Object stores cannot rename: there each file gets its name when it is complete, and all of them are
removed if a later one fails.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs

from dray.checks import require
from dray.data.sources.base import Filesystem
from dray.errors import ConfigError, StorageError, shown_url

# Directories of files that are not complete, which no reader looks into.
HIDDEN = ".dray-writing-"


class SaveMode(str, enum.Enum):
    """The ways to go on if there are files in a directory that is written to."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    CREATE = "create"
    ERROR = "error"  # the same


@dataclass(frozen=True)
class Place:
    """A directory for new files.

    Attributes:
        prefix: The beginning of the files' names, which no other files have.
    """

    filesystem: Filesystem
    directory: str
    prefix: str


@dataclass(frozen=True)
class Target:
    """A directory to write into, made if need be.

    Attributes:
        path: The directory, or a URL that fsspec knows.
        mode: The way to go on if there are files.
        filesystem: Of Arrow or fsspec, if the path is on another one than it says.

    Raises:
        ConfigError: The mode is unknown.
    """

    path: str
    mode: SaveMode | str = SaveMode.APPEND
    filesystem: Filesystem | None = None

    def __post_init__(self) -> None:
        if self.mode not in list(SaveMode):  # by equality, as texts have another hash
            known = ", ".join(repr(each.value) for each in SaveMode)
            raise ConfigError(f"mode must be one of {known}, not {self.mode!r}")

    @contextlib.contextmanager
    def opened(self) -> Iterator[Place | None]:
        """Give a place for new files, all of which are in the directory afterwards, or none.

        Yields:
            The place; None if nothing is to be written.

        Raises:
            StorageError: It cannot be written to, or there are files and are to be none.
        """
        with StorageError.instead(f"data cannot be written to {shown_url(self.path)}"):
            filesystem, directory = self._found()
            if not self._is_wanted(filesystem, directory):
                yield None
                return
            token = secrets.token_hex(4)
            hidden = f"{directory}/{HIDDEN}{token}" if _renames(filesystem) else None
            new = Place(filesystem, hidden or directory, f"part-{token}-")
            filesystem.create_dir(new.directory, recursive=True)
            try:
                yield new
                if hidden is not None:
                    _move_files(filesystem, hidden, directory)
            except BaseException:
                with contextlib.suppress(OSError, pa.ArrowException):  # the first error counts
                    _remove_new(new, directory)
                raise
            if hidden is not None:
                filesystem.delete_dir(hidden)
            if self.mode == SaveMode.OVERWRITE:
                _remove_old(filesystem, directory, new.prefix)

    def _is_wanted(self, filesystem: Filesystem, directory: str) -> bool:
        if self.mode in (SaveMode.APPEND, SaveMode.OVERWRITE):
            return True
        there = filesystem.get_file_info(pa.fs.FileSelector(directory, allow_not_found=True))
        if all(info.base_name.startswith(HIDDEN) for info in there):
            return True
        if self.mode == SaveMode.IGNORE:
            return False
        raise StorageError(
            f"there are files in {shown_url(self.path)}, and "
            f"mode={SaveMode(self.mode).value!r} says that none may be"
        )

    def _found(self) -> tuple[Filesystem, str]:
        if isinstance(self.filesystem, pa.fs.FileSystem):
            return self.filesystem, self.path
        if self.filesystem is not None:
            return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(self.filesystem)), self.path
        if "://" not in self.path:
            return pa.fs.LocalFileSystem(), os.path.abspath(os.path.expanduser(self.path))
        require("fsspec", "fsspec")
        import fsspec

        on, inner = fsspec.core.url_to_fs(self.path)
        return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(on)), inner


def _renames(filesystem: Filesystem) -> bool:
    """Return whether a file gets another name without being copied."""
    if isinstance(filesystem, pa.fs.SubTreeFileSystem):
        return _renames(filesystem.base_fs)
    return any(name in filesystem.type_name for name in ("local", "hdfs"))


def _move_files(filesystem: Filesystem, hidden: str, directory: str) -> None:
    """Move files into a directory, and those of directories into directories of the same names."""
    for info in filesystem.get_file_info(pa.fs.FileSelector(hidden)):
        to = f"{directory}/{info.base_name}"
        if info.type == pa.fs.FileType.Directory:
            filesystem.create_dir(to)
            _move_files(filesystem, info.path, to)
        else:
            filesystem.move(info.path, to)


def _remove_new(new: Place, directory: str) -> None:
    everything = pa.fs.FileSelector(directory, recursive=True)
    for info in new.filesystem.get_file_info(everything):
        if info.base_name.startswith(new.prefix):
            new.filesystem.delete_file(info.path)
    if new.directory != directory:
        new.filesystem.delete_dir(new.directory)


def _remove_old(filesystem: Filesystem, directory: str, prefix: str) -> None:
    """Remove what is in a directory but files of a prefix, and directories with such."""
    for info in filesystem.get_file_info(pa.fs.FileSelector(directory)):
        if info.type != pa.fs.FileType.Directory:
            if not info.base_name.startswith(prefix):
                filesystem.delete_file(info.path)
            continue
        inside = filesystem.get_file_info(pa.fs.FileSelector(info.path, recursive=True))
        if any(inner.base_name.startswith(prefix) for inner in inside):
            _remove_old(filesystem, info.path, prefix)
        else:
            filesystem.delete_dir(info.path)
