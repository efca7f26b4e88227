"""The local file system of pyarrow and fsspec, on which alone runs are stored yet."""

from __future__ import annotations

from dray.errors import ConfigError, MissingDependencyError

_LOCAL = {"local", "file"}


def check_filesystem(given: object, what: str) -> None:
    """Check that a file system of pyarrow or fsspec is the local one, or None.

    Raises:
        ConfigError: It is another one.
    """
    if given is not None and not _is_local(given):
        kind = getattr(given, "type_name", None) or type(given).__name__
        raise ConfigError(
            f"{what}: storage on {kind} is not supported yet; leave it out, and use a local or "
            "network-mounted directory"
        )


def _is_local(given: object) -> bool:
    handler = getattr(given, "handler", None)  # pyarrow's way to hold one of fsspec's
    inner = getattr(handler, "fs", given)
    protocol = getattr(inner, "protocol", None) or getattr(inner, "type_name", None)
    names = {protocol} if isinstance(protocol, str) else set(protocol or ())
    return bool(names & _LOCAL)


def local_filesystem() -> object:
    """Return pyarrow's local file system.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        from pyarrow import fs
    except ImportError:
        raise MissingDependencyError("pyarrow", "pyarrow") from None
    return fs.LocalFileSystem()
