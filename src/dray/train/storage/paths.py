"""Paths as users give them: of directories, as a path or a file:// URL, and names in them."""

from __future__ import annotations

import os
import re
import stat
import urllib.parse
from pathlib import Path

from dray.errors import ConfigError, StorageError
from dray.host import user_name


def local_path(path: object, what: str) -> Path:
    """Return the absolute form of the path of a directory, which may be a file:// URL.

    Raises:
        ConfigError: It is something else.
        StorageError: It is relative, and the working directory is gone.
    """
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or "\0" in given:
        raise ConfigError(f"{what} must be the path of a directory, not {path!r}")
    plain = os.path.expanduser(_without_scheme(given, what))
    if plain.startswith("~"):
        user = plain.partition("/")[0]
        raise ConfigError(
            f"{what}={given!r}: no home directory of {user} is known here; give the whole path, or "
            f"'./{plain}' for a directory of that name"
        )
    with StorageError.instead(f"{what}={given!r} is relative to a working directory that is gone"):
        return Path(os.path.abspath(plain))


def _without_scheme(given: str, what: str) -> str:
    scheme, colon, rest = given.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]+", scheme):
        return given
    if scheme.lower() == "file":
        if not rest.startswith("/"):
            raise ConfigError(
                f"{what}={given!r}: a file:// URL has a whole path, as file:///path has; leave "
                f"out 'file:' if you mean {rest!r}, or write './{given}' for a directory of that "
                "name"
            )
        host, path = "", rest
        if rest.startswith("//"):
            host, slash, path = rest[2:].partition("/")
            path = slash + path
        if host.lower() not in ("", "localhost") or not path:
            raise ConfigError(
                f"{what}={given!r} names the host {host!r}, but a file:// URL is for this "
                "machine: file:///path"
            )
        return urllib.parse.unquote(path)
    if rest.startswith("//"):
        raise ConfigError(
            f"{what}={given!r}: {scheme}:// is not on this machine; give a local or "
            "network-mounted directory"
        )
    return given


def check_name(name: object, what: str) -> None:
    """Check that a name can be that of a directory."""
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\\0]+", name) or name in (".", ".."):
        raise ConfigError(f"{what} must be the name of one directory, not {name!r}")


def is_file_name(name: object) -> bool:
    """Return whether something is the name of a file in a directory, or below it."""
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return {"", ".", ".."}.isdisjoint(name.split("/"))


def check_not_planted(path: Path) -> None:
    """Check that no other user has made a run's directory where all may make one, as in `/tmp`.

    The kernel follows links by the same rule (`fs.protected_symlinks`).

    Raises:
        StorageError: Another user has, and may have put anything into it.
    """
    for each in {path, path.resolve()}:
        own, parent = each.lstat(), each.parent.stat()
        shared = parent.st_mode & stat.S_ISVTX and parent.st_mode & stat.S_IWOTH
        if shared and own.st_uid not in (os.geteuid(), parent.st_uid):
            raise StorageError(
                f"the run directory {each} belongs to another user ({user_name(own.st_uid)}), "
                "who may have put anything into it, because all users may create directories "
                "there; give the run another RunConfig(name=...) or storage_path, or have the "
                "directory given to you"
            )


def check_directory(path: str) -> None:
    """Check that a checkpoint's directory is there."""
    if os.path.isdir(path):
        return
    if os.path.exists(path):
        raise StorageError(
            f"the checkpoint {path} is a file, not a directory; save it in a directory of its own, "
            "and give that"
        )
    raise StorageError(
        f"the checkpoint {path} is not there; CheckpointConfig(num_to_keep=...) "
        "deletes old ones, and a temporary directory ends with its `with` block"
    )
