"""A server of S3's API on this machine, moto's in a process of its own, which can be made to fail.

Run as a program it serves until its input ends, and says its port first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BUCKET = "runs"
SECRET = "never-to-be-written"


class Server:
    """A server that runs, as tests see it.

    Attributes:
        url: Its endpoint.
        storage_path: Where trainings keep their runs.
    """

    storage_path = f"s3://{BUCKET}/prefix"

    def __init__(self, url: str) -> None:
        self.url = url

    def filesystem(self) -> Any:
        """Return a file system of fsspec on it, whose client leaves it to others to try again."""
        import s3fs

        once = {"retries": {"mode": "standard", "total_max_attempts": 1}}
        return s3fs.S3FileSystem(key="me", secret=SECRET, endpoint_url=self.url, config_kwargs=once)

    def fails(self, *, every: int = 0, gone_s: float = 0.0, slow_s: float = 0.0) -> None:
        """Have each so-many-th request fail from now on, all for some seconds, or take longer."""
        urllib.request.urlopen(f"{self.url}/_fails/{every}/{gone_s}/{slow_s}").read()

    def loses(self, name: str) -> None:
        """Acknowledge the next upload to a name that ends so, or of a part of it, and forget it."""
        urllib.request.urlopen(f"{self.url}/_loses/{name}").read()

    @contextlib.contextmanager
    def failing(self, **how: Any) -> Iterator[None]:
        """Have requests fail as `fails` says while this lasts."""
        self.fails(**how)
        try:
            yield
        finally:
            self.fails()


@contextlib.contextmanager
def served() -> Iterator[Server]:
    """Run a server while this lasts."""
    program = [sys.executable, "-m", "tests.support.s3_server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        assert process.stdin is not None
        process.stdin.close()


class Faulty:
    """An application of WSGI in front of another one."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._every = self._count = 0
        self._gone_until = self._slow_s = 0.0
        self._lost = ""

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., object]
    ) -> Iterable[bytes]:
        path = environ["PATH_INFO"].split("/")
        if path[1] == "_fails":
            self._every, self._gone_until = int(path[2]), time.monotonic() + float(path[3])
            self._slow_s = float(path[4])
            start_response("200 OK", [])
            return []
        if path[1] == "_loses":
            self._lost = path[2]
            start_response("200 OK", [])
            return []
        if self._lost and environ["REQUEST_METHOD"] == "PUT" and path[-1] == self._lost:
            self._lost = ""
            environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            start_response("200 OK", [("ETag", '"0123456789abcdef0123456789abcdef"')])
            return []
        if time.monotonic() < self._gone_until:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        time.sleep(self._slow_s)
        with self._lock:
            self._count += 1
            fails = self._every and self._count % self._every == 0
        if fails:
            how = [("Content-Type", "application/xml"), ("Retry-After", "0")]
            start_response("503 Slow Down", how)
            return [b"<Error><Code>SlowDown</Code><Message>no</Message></Error>"]
        return self._application(environ, start_response)


def main() -> None:
    """Serve until the input ends."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server.server_port}",
        aws_access_key_id="me",
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    ).create_bucket(Bucket=BUCKET)
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
