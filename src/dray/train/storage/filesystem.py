"""Places as users give them: a path or a URL, and perhaps a file system of fsspec or pyarrow."""

from __future__ import annotations

import importlib
import os
import re
import urllib.parse
from typing import Any

from dray.checks import require
from dray.errors import ConfigError, MissingDependencyError, shown_url
from dray.train.storage.paths import local_path
from dray.train.storage.place import Place, RemotePath

_LOCAL = {"local", "file"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)

# Scheme -> the package that reads it, and what to install.
_PACKAGES = {
    "s3": ("s3fs", "dray[s3]"),
    "s3a": ("s3fs", "dray[s3]"),
    "gs": ("gcsfs", "dray[gcs]"),
    "gcs": ("gcsfs", "dray[gcs]"),
    "abfs": ("adlfs", "dray[azure]"),
    "abfss": ("adlfs", "dray[azure]"),
    "az": ("adlfs", "dray[azure]"),
    "hdfs": ("hdfs_native", "dray[hdfs]"),
    "viewfs": ("hdfs_native", "dray[hdfs]"),
}
_HADOOP = ("hdfs", "viewfs")
# By itself it tries for minutes before it says that nobody answers; who asks it tries again.
_FEW_ATTEMPTS = {"dfs.client.failover.max.attempts": "2"}


def place_at(path: object, filesystem: object, what: str, of: str = "storage_filesystem") -> Place:
    """Return the place that a user means.

    Args:
        path: A path or a URL, as given.
        filesystem: A file system of fsspec or pyarrow, as given; None if the path says enough.

    Raises:
        ConfigError: They are something else, or do not go together.
        MissingDependencyError: The package that reads such a URL is not installed.
    """
    inner = _unwrapped(filesystem, of)
    if inner is not None and _is_local(inner):
        return local_path(path, what)
    url = _URL.fullmatch(path) if isinstance(path, str) else None
    if inner is None:
        if url is None or url[1].lower() == "file":
            return local_path(path, what)
        scheme = url[1].lower()
        rest, options = _split_options(scheme, url[2])
        _refuse_secrets(url[0], rest, what)
        return _place_of_url(f"{scheme}://{rest}", scheme, what, options)
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or not given or "\0" in given:
        raise ConfigError(f"{what} must be a path within {of}, not {path!r}")
    if url is not None:
        _refuse_secrets(given, url[2], what)
        given = url[2]
        if "memory" in _protocols(inner):
            given = f"/{given.strip('/')}"
    return RemotePath(given.rstrip("/"), inner)


def _split_options(scheme: str, rest: str) -> tuple[str, dict[str, Any]]:
    """Return a URL without the options that S3's may have, as pyarrow reads them, and options.

    Source: https://arrow.apache.org/docs/python/generated/pyarrow.fs.S3FileSystem.html
    """
    if scheme in _HADOOP:
        return rest, dict(_FEW_ATTEMPTS)
    path, _, query = rest.partition("?")
    said = dict(urllib.parse.parse_qsl(query))
    if scheme not in {"s3", "s3a"} or not said.keys() <= {"endpoint_override", "scheme", "region"}:
        return rest, {}
    options: dict[str, Any] = {}
    if "endpoint_override" in said:
        host = said["endpoint_override"]
        whole = host if "://" in host else f"{said.get('scheme', 'https')}://{host}"
        options["endpoint_url"] = whole
    if "region" in said:
        options["client_kwargs"] = {"region_name": said["region"]}
    return path, options


def _place_of_url(url: str, scheme: str, what: str, options: dict[str, Any]) -> RemotePath:
    require("fsspec", _PACKAGES.get(scheme, ("", "fsspec"))[1])
    from fsspec.core import url_to_fs

    try:
        if scheme in _PACKAGES:
            importlib.import_module(_PACKAGES[scheme][0])  # fsspec may know another one besides
        filesystem, path = url_to_fs(url, **options)
    except ImportError as error:
        if scheme not in _PACKAGES:
            raise ConfigError(f"{what}={url!r}: {error}") from error
        raise MissingDependencyError(*_PACKAGES[scheme]) from error
    except RuntimeError as error:
        if scheme not in _HADOOP:
            raise
        raise ConfigError(
            f"{what}={url!r}: {error}; name the host, or the name service that the files in "
            "HADOOP_CONF_DIR describe"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{what}={url!r}: fsspec knows no {scheme}:// ({error}); give a path or a URL such as "
            "s3://bucket/prefix, and perhaps storage_filesystem"
        ) from error
    if not path.strip("/") and scheme != "memory":
        raise ConfigError(f"{what}={url!r} names no bucket or directory: {_example(scheme)}")
    return RemotePath(path.rstrip("/"), filesystem)


def _example(scheme: str) -> str:
    return f"{scheme}://host/directory" if scheme in _HADOOP else f"{scheme}://bucket/prefix"


def _refuse_secrets(url: str, rest: str, what: str) -> None:
    """Refuse credentials in a URL, which would be shown and written wherever it is."""
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0] or "?" in rest:
        raise ConfigError(
            f"{what}={shown_url(url)!r} has credentials or options in the URL, and dray would "
            "write them wherever it writes the URL; pass them with storage_filesystem=, or in "
            "the environment"
        )
    if "@" in authority and url.lower().startswith(_HADOOP):
        raise ConfigError(
            f"{what}={url!r} names a user, but HDFS does not take one from a URL; set "
            "HADOOP_USER_NAME, or get a Kerberos ticket"
        )
    if "::" in url:
        raise ConfigError(f"{what}={url!r} is a chain of file systems; give one of them")


def _unwrapped(given: object, of: str) -> Any:
    """Return a file system of fsspec for what was given."""
    if given is None or _is_local(given):
        return given
    handler = getattr(given, "handler", None)  # pyarrow's way to hold one of fsspec's
    inner = getattr(handler, "fs", given)
    if getattr(inner, "asynchronous", False):
        raise ConfigError(f"{of} must be made without asynchronous=True")
    if hasattr(inner, "cat_file") and hasattr(inner, "pipe_file"):
        return inner
    if not type(inner).__module__.startswith("pyarrow"):
        raise ConfigError(f"{of} must be a file system of fsspec or pyarrow, not {given!r}")
    require("fsspec", "fsspec")
    from fsspec.implementations.arrow import ArrowFSWrapper

    return ArrowFSWrapper(inner)


def _is_local(given: object) -> bool:
    handler = getattr(given, "handler", None)
    return bool(_protocols(getattr(handler, "fs", given)) & _LOCAL)


def _protocols(given: object) -> set[str]:
    protocol = getattr(given, "protocol", None) or getattr(given, "type_name", None)
    return {protocol} if isinstance(protocol, str) else set(protocol or ())


def shown_filesystem(place: Place) -> str:
    """Return the kind of a place's file system in a word."""
    if not isinstance(place, RemotePath):
        return "local"
    return str(place).partition("://")[0]


def arrow_filesystem(place: Place) -> Any:
    """Return the file system of a place, of pyarrow."""
    require("pyarrow", "pyarrow")
    from pyarrow import fs

    if not isinstance(place, RemotePath):
        return fs.LocalFileSystem()
    inner = place.filesystem
    if hasattr(inner, "fs") and type(inner).__name__.startswith(("Arrow", "Hadoop")):
        return inner.fs
    return fs.PyFileSystem(fs.FSSpecHandler(inner))
