"""The search for the files at given paths, and errors that name a file."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs

from dray.checks import require
from dray.data.sources.base import Filesystem
from dray.errors import DrayError, NoSuchFileError, StorageError, describe, shown_url

Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# Selects files by their paths.
Passing: TypeAlias = Callable[[list[str]], list[str]]

_DAMAGED = (
    *(ValueError, SyntaxError, EOFError, OverflowError, RecursionError, MemoryError),
    *(struct.error, tarfile.TarError),
)


def find_files(
    paths: Paths,
    endings: Sequence[str],
    filesystem: Filesystem,
    passing: Passing | None,
    ignore_missing: bool,
) -> tuple[list[str], Filesystem]:
    """Return the files at given paths, and their Arrow filesystem.

    Args:
        paths: Files, directories, globs or URLs that fsspec supports; all on one filesystem.
        endings: Extensions of the files to read in a directory.
        filesystem: A filesystem of Arrow or fsspec, if it is not the one that the paths name.
        passing: Selects files; None selects all.
        ignore_missing: Whether to skip missing paths.

    Raises:
        NoSuchFileError: There is no file, or `passing` selects none.
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    names = [os.fspath(path) for path in listed]
    if filesystem is None and not any("://" in name for name in names):
        found = [
            file
            for name in names
            for file in _local_files(name, endings, ignore_missing=ignore_missing)
        ]
        chosen: Filesystem = pa.fs.LocalFileSystem()
    else:
        found, chosen = _remote_files(names, endings, filesystem, ignore_missing=ignore_missing)
    passed = found if passing is None else list(passing(found))
    if not passed:
        ending = f" that end in {', '.join(endings)}" if any(endings) else ""
        where = ", ".join(map(shown_url, names)) or "no path"
        passing_it = " that pass partition_filter" if found else ""
        raise NoSuchFileError(f"there are no files at {where}{ending}{passing_it}")
    return passed, chosen


def _local_files(name: str, endings: Sequence[str], *, ignore_missing: bool = False) -> list[str]:
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        with naming(path):
            inside = list(_files_below(path))
        return [file for file in _data_files(path, inside, endings) if os.path.isfile(file)]
    if not os.path.exists(path) and glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True))
        return _each_once(_local_files(match, endings) for match in matches)
    if os.path.exists(path):
        return [path]
    if ignore_missing:
        return []
    raise NoSuchFileError(f"there is no file {name}")


def _files_below(directory: str) -> Iterator[str]:
    """Yield the files of a directory and its subdirectories; raise if one cannot be listed."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(directory, onerror=refuse, followlinks=True):
        folders[:] = filter(_is_shown, folders)
        yield from (os.path.join(folder, file) for file in files)


def _is_shown(name: str) -> bool:
    """Return whether a file or directory of this name may hold data.

    Names that begin with `_` or `.` hold none, unless they are partitions such as `_kind=a`: Spark,
    Delta Lake and others store metadata under such names.
    """
    return not name.startswith(("_", ".")) or "=" in name


def _each_once(lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(itertools.chain.from_iterable(lists)))


def _data_files(directory: str, files: Iterable[str], endings: Sequence[str]) -> list[str]:
    """Return the data files of a directory."""

    def is_data(file: str) -> bool:
        parts = file.strip("/").removeprefix(directory.strip("/")).split("/")
        return file.lower().endswith(wanted) and all(map(_is_shown, parts))

    wanted = tuple(ending.lower() for ending in endings)
    return sorted(filter(is_data, files))


def _remote_files(
    names: Sequence[str], endings: Sequence[str], filesystem: Filesystem, *, ignore_missing: bool
) -> tuple[list[str], Filesystem]:
    require("fsspec", "fsspec")
    import fsspec
    from fsspec.implementations.arrow import ArrowFSWrapper

    on: Any = filesystem
    if filesystem is None:
        options = {"anon": True} if "anonymous@" in names[0] else {}
        names = [name.replace("anonymous@", "") for name in names]
        on = fsspec.core.url_to_fs(names[0], **options)[0]
    elif isinstance(filesystem, pa.fs.FileSystem):
        on = ArrowFSWrapper(filesystem)
    names = [on._strip_protocol(name) for name in names]

    def listed(name: str, *, is_directory: bool) -> list[str]:
        return _data_files(name, on.find(name), endings) if is_directory else [name]

    found: list[str] = []
    for name in names:
        if glob.has_magic(name):
            matches = sorted(on.glob(name, detail=True).items())
            found += _each_once(
                listed(match, is_directory=told["type"] == "directory") for match, told in matches
            )
        elif not ignore_missing or on.exists(name):
            found += listed(name, is_directory=on.isdir(name))
    if isinstance(filesystem, pa.fs.FileSystem):
        return found, filesystem
    return found, pa.fs.PyFileSystem(pa.fs.FSSpecHandler(on))


@contextlib.contextmanager
def naming(path: str, failed: str = "cannot be read") -> Iterator[None]:
    """Raise an error that names the file if it cannot be read or understood."""
    path = shown_url(path)
    try:
        yield
    except DrayError:
        raise
    except FileNotFoundError as error:
        raise NoSuchFileError(f"there is no file {path}") from error
    except OSError as error:
        raise StorageError.of(error, f"{path} cannot be read") from error
    except (*_DAMAGED, pa.ArrowException) as error:
        raise StorageError(f"{path} {failed}: {describe(error)}") from error
