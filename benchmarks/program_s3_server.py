"""Program: a fast server of S3's API, with objects in memory and without checks.

The server verifies no signatures and computes no checksums, so that a measurement is that of the
client. Bytes go from the socket into the object, and from the object to the socket, without a copy.
Each connection has a thread. The program records its port, and the harness kills it at the end.
"""

import io
import itertools
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

from benchmarks.records import record

_DATE = "2026-11-23T00:00:00.000Z"
_MODIFIED = {"Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT"}
_PAGE = 1000
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content"}
_PART = re.compile(r"<PartNumber>(\d+)</PartNumber>")
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)

Answer = tuple[int, dict[str, str], list[memoryview]]


class Refused(Exception):
    """The error that answers a request: its status and code."""


class Stored:
    """An object, as the pieces of its upload."""

    def __init__(self, pieces: list[memoryview], number: int) -> None:
        self.pieces = pieces
        self.size = sum(map(len, pieces))
        self.etag = f'"{number:032x}-{len(pieces)}"'

    def between(self, start: int, end: int) -> list[memoryview]:
        """Return the bytes from one position to another."""
        found, at = [], 0
        for piece in self.pieces:
            part = piece[max(0, start - at) : max(0, end - at)]
            if len(part):
                found.append(part)
            at += len(piece)
        return found


class Objects:
    """The contents of the server: objects by `bucket/key`, and multipart uploads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._objects: dict[str, Stored] = {}
        self._uploads: dict[str, dict[int, memoryview]] = {}

    def answer(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: Any
    ) -> Answer:
        """Return the answer to a request."""
        with self._lock:
            if "/" not in key:
                return self._answer_bucket(method, key, query, bytes(body))
            if "uploadId" in query or "uploads" in query:
                return self._answer_upload(method, key, query, body)
            if method == "PUT":
                return self._put(key, headers, body)
            if method == "DELETE":
                self._objects.pop(key, None)
                return 204, {}, []
            return self._get(key, headers)

    def _answer_bucket(
        self, method: str, bucket: str, query: Mapping[str, str], body: bytes
    ) -> Answer:
        if "delete" in query:
            for name in _KEY.findall(body.decode()):
                self._objects.pop(f"{bucket}/{name}", None)
            return _xml("DeleteResult", "")
        if method == "GET" and "location" not in query:
            return self._list(bucket, query)
        return _xml("LocationConstraint", "")

    def _list(self, bucket: str, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", "")
        found: dict[str, str] = {}
        start = len(bucket) + 1
        for full in sorted(self._objects):
            name = full[start:]
            if not full.startswith(f"{bucket}/{prefix}"):
                continue
            stem, cut, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            entry = prefix + stem + cut if cut else name
            if entry <= after or entry in found:
                continue
            if len(found) == int(query.get("max-keys", _PAGE)):
                more = f"<NextContinuationToken>{escape(max(found))}</NextContinuationToken>"
                return _xml("ListBucketResult", _LISTED % "true", more, *found.values())
            found[entry] = self._entry(entry, "" if cut else full)
        return _xml("ListBucketResult", _LISTED % "false", *found.values())

    def _entry(self, name: str, full: str) -> str:
        if not full:
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        stored = self._objects[full]
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{_DATE}</LastModified>"
            f"<ETag>{escape(stored.etag)}</ETag><Size>{stored.size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )

    def _answer_upload(
        self, method: str, key: str, query: Mapping[str, str], body: memoryview
    ) -> Answer:
        if "uploads" in query:
            number = f"upload-{next(self._numbers)}"
            self._uploads[number] = {}
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{number}</UploadId>")
        number = query["uploadId"]
        if method == "PUT":
            self._uploads[number][int(query["partNumber"])] = body
            return 200, {"ETag": f'"{next(self._numbers):032x}"'}, []
        parts = self._uploads.pop(number)
        if method == "DELETE":
            return 204, {}, []
        pieces = [parts[int(each)] for each in _PART.findall(bytes(body).decode())]
        stored = self._objects[key] = Stored(pieces, next(self._numbers))
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(stored.etag)}</ETag>")

    def _put(self, key: str, headers: Mapping[str, str], body: memoryview) -> Answer:
        if headers.get("if-none-match") == "*" and key in self._objects:
            raise Refused(412, "PreconditionFailed")
        if "x-amz-copy-source" in headers:
            source = unquote(headers["x-amz-copy-source"]).lstrip("/")
            stored = self._objects[key] = self._objects[source]
            return _xml("CopyObjectResult", f"<ETag>{escape(stored.etag)}</ETag>")
        stored = self._objects[key] = Stored([body] if len(body) else [], next(self._numbers))
        return 200, {"ETag": stored.etag}, []

    def _get(self, key: str, headers: Mapping[str, str]) -> Answer:
        stored = self._objects.get(key)
        if stored is None:
            raise Refused(404, "NoSuchKey")
        told = {"ETag": stored.etag, "Accept-Ranges": "bytes", **_MODIFIED}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        if asked is None:
            return 200, told, stored.pieces
        start, end = int(asked[1]), min(int(asked[2] or stored.size), stored.size - 1) + 1
        told["Content-Range"] = f"bytes {start}-{end - 1}/{stored.size}"
        return 206, told, stored.between(start, end)


_LISTED = "<IsTruncated>%s</IsTruncated>"


def _xml(name: str, *content: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{"".join(content)}</{name}>'
    return 200, {"Content-Type": "application/xml"}, [memoryview(text.encode())]


class Connection:
    """The connection of a client, with one request after another."""

    def __init__(self, connection: socket.socket, objects: Objects) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._file = io.BufferedReader(connection.makefile("rb", buffering=0), 1 << 16)
        self._objects = objects

    def serve(self) -> None:
        """Answer requests until the client disconnects."""
        with self._socket, self._file:
            try:
                while (line := self._file.readline()) not in (b"", b"\r\n"):
                    self._answer(*line.decode().split()[:2])
            except ConnectionError:
                return

    def _answer(self, method: str, target: str) -> None:
        headers = dict(self._headers())
        if headers.get("expect", "").lower() == "100-continue":
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._body(headers)
        path, _, query = target.partition("?")
        asked = {name: each[0] for name, each in parse_qs(query, keep_blank_values=True).items()}
        key = unquote(path).strip("/")
        try:
            status, told, content = self._objects.answer(method, key, asked, headers, body)
        except Refused as error:
            status, code = error.args
            text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
            told, content = {"Content-Type": "application/xml"}, [memoryview(text.encode())]
        told["Content-Length"] = str(sum(map(len, content)))
        head = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Refused')}"]
        head += [f"{name}: {value}" for name, value in told.items()]
        self._socket.sendall("\r\n".join([*head, "", ""]).encode())
        for piece in content if method != "HEAD" else []:
            self._socket.sendall(piece)

    def _headers(self) -> Iterator[tuple[str, str]]:
        while (line := self._file.readline()) not in (b"", b"\r\n"):
            name, _, value = line.decode().partition(":")
            yield name.lower(), value.strip()

    def _body(self, headers: Mapping[str, str]) -> memoryview:
        if "aws-chunked" in headers.get("content-encoding", ""):
            return self._chunks(int(headers["x-amz-decoded-content-length"]))
        if "chunked" in headers.get("transfer-encoding", ""):
            raise NotImplementedError("a body of unknown length")
        return self._read(int(headers.get("content-length", 0)))

    def _read(self, size: int) -> memoryview:
        body = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = self._file.readinto(body[at:])  # unbuffered bytes go there without a copy
            if not count:
                raise ConnectionResetError
            at += count
        return body

    def _chunks(self, size: int) -> memoryview:
        """Read a body in chunks, and ignore their checksums and signatures."""
        body = bytearray(size)
        at = 0
        while count := int(self._file.readline().partition(b";")[0], 16):
            body[at : at + count] = self._read(count)
            at += count
            self._file.readline()
        while self._file.readline() not in (b"", b"\r\n"):
            continue
        return memoryview(body)


def main() -> None:
    """Serve until this process is killed."""
    objects = Objects()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        record("serves", port=listener.getsockname()[1])
        while True:
            connection = Connection(listener.accept()[0], objects)
            threading.Thread(target=connection.serve, daemon=True).start()


if __name__ == "__main__":
    main()
