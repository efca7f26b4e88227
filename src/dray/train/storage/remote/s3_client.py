"""Requests to S3 in the threads of their callers, with the settings of a file system of s3fs.

s3fs signs, checks and copies all data in one thread. A client of botocore does so in the calling
thread, and most of that work lets other threads run.
"""

from __future__ import annotations

import functools
import io
from typing import Any

# File systems that a process keeps clients for.
FILE_SYSTEMS = 4
# Options of s3fs that such a client cannot follow.
_OTHERS = {"session", "connector_args", "http_session_cls"}


class ThreadedS3:
    """A client of botocore beside a file system of s3fs, for many threads.

    Args:
        at_once: Number of requests that may be under way.
    """

    def __init__(self, filesystem: Any, at_once: int) -> None:
        from botocore.config import Config
        from botocore.session import Session
        from s3fs.errors import translate_boto_error

        config = filesystem.s3.meta.config.merge(Config(max_pool_connections=at_once))
        session = Session(**filesystem.kwargs)
        # What describes S3's requests takes 10 MiB, and is read already.
        loader = filesystem.session.get_component("data_loader")
        session.register_component("data_loader", loader)
        given = {
            "aws_access_key_id": filesystem.key,
            "aws_secret_access_key": filesystem.secret,
            "aws_session_token": filesystem.token,
            "endpoint_url": filesystem.endpoint_url,
            "use_ssl": filesystem.use_ssl,
        }
        told = {name: value for name, value in given.items() if value is not None}
        told |= filesystem.client_kwargs
        self._client = session.create_client("s3", config=config, **told)
        self._more = {**filesystem.s3_additional_kwargs, **filesystem.req_kw}
        self._split_path = filesystem.split_path
        self._translated = translate_boto_error

    def call_s3(self, what: str, **options: Any) -> Any:
        """Make a request, as s3fs does it; what is raised is as of s3fs."""
        if "Body" in options:  # sent piece by piece, each with a timeout of its own
            options["Body"] = io.BytesIO(options["Body"])
        try:
            answer = getattr(self._client, what)(**self._more_for(what), **options)
            if what == "get_object":
                answer["Body"] = answer["Body"].read()
        except Exception as error:
            raise self._translated(error) from error
        return answer

    def _more_for(self, what: str) -> dict[str, Any]:
        """Return what the user of s3fs wants in each request that has such a thing."""
        meta = self._client.meta
        known = meta.service_model.operation_model(meta.method_to_api_mapping[what]).input_shape
        return {name: value for name, value in self._more.items() if name in known.members}

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from one position to another."""
        bucket, key, _ = self._split_path(path)
        asked = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{end - 1}"}
        content = self.call_s3("get_object", **asked)["Body"]
        assert isinstance(content, bytes)
        return content


@functools.lru_cache(FILE_SYSTEMS)
def threaded(filesystem: Any, at_once: int) -> Any:
    """Return what makes requests for a file system of s3fs: itself, if none else can."""
    options = filesystem.storage_options
    if not _OTHERS.isdisjoint({*options, *(options.get("config_kwargs") or ())}):
        return filesystem
    return ThreadedS3(filesystem, at_once)
