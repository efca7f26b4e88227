"""Directories that rows are written to; old files stay until all new files are complete.

If the filesystem can rename files, new files are in a hidden directory until the last one is
complete. Object stores cannot rename. There, each file gets its name when it is complete, and if a
later file fails, all new files are removed.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs

from dray.checks import require
from dray.data.sources.base import Filesystem
from dray.data.sources.filenames import FilenameProvider
from dray.errors import ConfigError, StorageError, shown_url

# Directories of incomplete files; readers skip them.
HIDDEN = ".dray-writing-"


class SaveMode(str, enum.Enum):
    """The actions if the directory that is written to has files."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    CREATE = "create"
    ERROR = "error"  # the same as CREATE


def mode_of(given: object, modes: Iterable[SaveMode] = SaveMode) -> SaveMode:
    """Return the mode with this name.

    Raises:
        ConfigError: There is no such mode.
    """
    known = {each.value: each for each in modes}
    if not isinstance(given, str) or given not in known:
        names = ", ".join(map(repr, known))
        raise ConfigError(f"mode must be one of {names}, not {given!r}")
    return known[given]


@dataclass(frozen=True)
class Place:
    """A directory for new files.

    Attributes:
        token: A part of the files' names that is unique to this write.
        filenames: Names the files; None uses dray's names.
        names: The names of the files so far, if dray did not choose them.
    """

    filesystem: Filesystem
    directory: str
    token: str
    filenames: FilenameProvider | None
    names: set[str] = field(default_factory=set)

    def file(self, number: int, ending: str, *, of_row: bool = False) -> str:
        """Return the path of a new file.

        Args:
            number: The number of the file in this write.
            ending: The extension of the name, if dray chooses it.
            of_row: Whether the file contains one row.

        Raises:
            ConfigError: The name is invalid or already used.
        """
        return f"{self.directory}/{self._named(number, ending, of_row=of_row)}"

    def template(self, number: int, ending: str) -> str:
        """Return the name of new files in several directories, with `{i}` for their numbers."""
        base, end = os.path.splitext(self._named(number, ending))
        return f"{base}-{{i}}{end}"

    def _named(self, number: int, ending: str, *, of_row: bool = False) -> str:
        if self.filenames is None:
            return f"{self._prefix}{number:06d}.{ending}"
        name = self.filenames.get_filename_for_task(self.token, 0 if of_row else number)
        if not isinstance(name, str) or "/" in name or not name:
            raise ConfigError(f"filename_provider must return the name of a file, not {name!r}")
        if of_row:
            base, end = os.path.splitext(name)
            name = f"{base}_{0:06d}_{number:06d}{end}"
        if name in self.names:
            raise ConfigError(
                f"filename_provider gives two files the name {name!r}: use task_index in the name"
            )
        self.names.add(name)
        return name

    @property
    def _prefix(self) -> str:
        return f"part-{self.token}-"

    def is_new(self, name: str) -> bool:
        """Return whether a name is that of a new file."""
        return name.startswith(self._prefix) or name in self.names


@dataclass(frozen=True)
class Target:
    """A directory to write to; it is created if it does not exist.

    Attributes:
        path: The directory, or a URL that fsspec supports.
        mode: The action if there are files.
        filesystem: A filesystem of Arrow or fsspec, if it is not the one that the path names.
        filenames: Names the files; None uses dray's names.

    Raises:
        ConfigError: The mode is unknown, or `filenames` is not a FilenameProvider.
    """

    path: str
    mode: SaveMode | str
    filesystem: Filesystem | None
    filenames: FilenameProvider | None

    def __post_init__(self) -> None:
        mode_of(self.mode)
        if not isinstance(self.filenames, FilenameProvider | None):
            raise ConfigError(
                f"filename_provider must be a FilenameProvider, not {self.filenames!r}"
            )

    @contextlib.contextmanager
    def opened(self) -> Iterator[Place | None]:
        """Provide a place for new files; afterwards all of them are in the directory, or none.

        Yields:
            The place; None if the mode is "ignore" and the directory has files.

        Raises:
            StorageError: The directory cannot be written to, or the mode forbids existing files.
        """
        with StorageError.instead(f"data cannot be written to {shown_url(self.path)}"):
            filesystem, directory = self._found()
            if not self._is_wanted(filesystem, directory):
                yield None
                return
            token = secrets.token_hex(4)
            hidden = f"{directory}/{HIDDEN}{token}" if _renames(filesystem) else None
            new = Place(filesystem, hidden or directory, token, self.filenames)
            filesystem.create_dir(new.directory, recursive=True)
            moved: list[str] = []
            try:
                yield new
                if hidden is not None:
                    _move_files(filesystem, hidden, directory, moved)
            except BaseException:
                with contextlib.suppress(OSError, pa.ArrowException):  # raise the first error
                    _remove_new(new, moved, hidden)
                raise
            if hidden is not None:
                filesystem.delete_dir(hidden)
            if self.mode == SaveMode.OVERWRITE:
                _remove_old(new, directory)

    def _is_wanted(self, filesystem: Filesystem, directory: str) -> bool:
        if self.mode in (SaveMode.APPEND, SaveMode.OVERWRITE):
            return True
        there = filesystem.get_file_info(pa.fs.FileSelector(directory, allow_not_found=True))
        if all(info.base_name.startswith(HIDDEN) for info in there):
            return True
        if self.mode == SaveMode.IGNORE:
            return False
        raise StorageError(
            f"there are files in {shown_url(self.path)}, which "
            f"mode={SaveMode(self.mode).value!r} does not allow"
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
    """Return whether the filesystem can rename files without copying them."""
    if isinstance(filesystem, pa.fs.SubTreeFileSystem):
        return _renames(filesystem.base_fs)
    return any(name in filesystem.type_name for name in ("local", "hdfs"))


def _move_files(filesystem: Filesystem, hidden: str, directory: str, moved: list[str]) -> None:
    """Move files into a directory, and subdirectories into those with the same names.

    Args:
        moved: The list to which the new paths are added.
    """
    for info in filesystem.get_file_info(pa.fs.FileSelector(hidden)):
        to = f"{directory}/{info.base_name}"
        if info.type == pa.fs.FileType.Directory:
            filesystem.create_dir(to)
            _move_files(filesystem, info.path, to, moved)
        else:
            filesystem.move(info.path, to)
            moved.append(to)


def _remove_new(new: Place, moved: list[str], hidden: str | None) -> None:
    """Remove new files: the moved ones and the hidden directory, or those in the directory itself.

    Older files stay, even if they have the same names.
    """
    paths = moved
    if hidden is None:
        there = new.filesystem.get_file_info(pa.fs.FileSelector(new.directory, recursive=True))
        paths = [info.path for info in there if new.is_new(info.base_name)]
    for path in paths:
        new.filesystem.delete_file(path)
    if hidden is not None:
        new.filesystem.delete_dir(hidden)


def _remove_old(new: Place, directory: str) -> None:
    """Remove everything in a directory except new files and the directories that contain them."""
    filesystem = new.filesystem
    for info in filesystem.get_file_info(pa.fs.FileSelector(directory)):
        if info.type != pa.fs.FileType.Directory:
            if not new.is_new(info.base_name):
                filesystem.delete_file(info.path)
            continue
        inside = filesystem.get_file_info(pa.fs.FileSelector(info.path, recursive=True))
        if any(new.is_new(inner.base_name) for inner in inside):
            _remove_old(new, info.path)
        else:
            filesystem.delete_dir(info.path)
