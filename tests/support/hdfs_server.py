"""HDFS on this machine: a NameNode and a DataNode, whose jars `make test-hdfs` fetches."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

JARS = Path(__file__).resolve().parents[2] / "build" / "hadoop" / "jars"

_SERVERS = "org.apache.hadoop.hdfs.server"
NAMENODE = f"{_SERVERS}.namenode.NameNode"
DATANODE = f"{_SERVERS}.datanode.DataNode"
# Java 17 keeps these to itself, which Hadoop 2.7 does not know.
_OPENED = [
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
]
_REGISTERED = "registerDatanode"
_LOG = """
log4j.rootLogger=WARN,console
log4j.logger.org.apache.hadoop.hdfs.StateChange=INFO
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.out
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def why_not() -> str:
    """Return why there is no HDFS here; nothing if there can be one."""
    if not any(JARS.glob("hadoop-hdfs-*.jar")):
        return "Hadoop is not there: make test-hdfs fetches it"
    return "" if shutil.which("java") else "there is no Java"


def _free_port() -> int:
    """Return a port below those that the system gives away by itself, as to somebody's client."""
    for port in random.Random(os.getpid()).sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


class Hdfs:
    """An HDFS, as trainings see it: by its URL alone.

    Attributes:
        url: Its root.
        storage_path: Where trainings keep their runs.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.storage_path = f"{url}/runs"

    def filesystem(self) -> None:
        """Return nothing: the URL says enough."""


class Server(Hdfs):
    """An HDFS that runs here.

    Args:
        home: A directory of its own.
    """

    def __init__(self, home: Path) -> None:
        super().__init__(f"hdfs://127.0.0.1:{_free_port()}")
        self.conf = home / "conf"
        self._home = home
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._said: deque[str] = deque(maxlen=100)
        self._has_datanode = threading.Event()
        for web in ("hdfs", "datanode"):  # their pages, which are in no jar
            (self.conf / "webapps" / web).mkdir(parents=True)
        (self.conf / "webapps" / "static").mkdir()
        (self.conf / "log4j.properties").write_text(_LOG)
        table = "fs.viewfs.mounttable.mounts"
        mount = {f"{table}.link./far": f"{self.url}/runs", f"{table}.linkFallback": self.url}
        self._configure("core-site", {"fs.defaultFS": self.url, **mount})
        here = "127.0.0.1:0"
        self._configure(
            "hdfs-site",
            {
                "dfs.namenode.name.dir": f"file://{home}/name",
                "dfs.datanode.data.dir": f"file://{home}/data",
                "dfs.namenode.http-address": here,
                "dfs.datanode.address": here,
                "dfs.datanode.http.address": here,
                "dfs.datanode.ipc.address": here,
                "dfs.webhdfs.enabled": "false",
                "dfs.replication": "1",
                "dfs.heartbeat.interval": "1",
                "dfs.namenode.safemode.extension": "0",
            },
        )

    def _configure(self, name: str, options: dict[str, str]) -> None:
        said = (
            f"<property><name>{k}</name><value>{v}</value></property>" for k, v in options.items()
        )
        text = f"<configuration>{''.join(said)}</configuration>"
        (self.conf / f"{name}.xml").write_text(text)

    def _java(self, *command: str) -> list[str]:
        return [
            *("setpriv", "--pdeathsig", "KILL", "java", "-Xmx256m", "-XX:+UseSerialGC"),
            *("-XX:TieredStopAtLevel=1", "-Xshare:auto", *_OPENED),
            *("-cp", f"{self.conf}:{JARS}/*", *command),
        ]

    def start(self) -> None:
        """Make the file system, and run it until it takes files."""
        quiet = subprocess.DEVNULL
        subprocess.run(self._java(NAMENODE, "-format"), stdout=quiet, stderr=quiet, check=True)
        self.start_one(DATANODE)
        self.start_one(NAMENODE)
        self._has_datanode.wait(120)
        if not any(_REGISTERED in line for line in self._said):
            raise AssertionError("".join(self._said))

    def start_one(self, server: str) -> None:
        """Run a server that does not run."""
        begun = threading.Event()
        threading.Thread(target=self._run, args=[server, begun], daemon=True).start()
        begun.wait()

    def _run(self, server: str, begun: threading.Event) -> None:
        """Run a server; it is killed when the thread that has started it ends."""
        with subprocess.Popen(
            self._java(server), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            self._running[server] = process
            begun.set()
            assert process.stdout is not None
            for line in process.stdout:
                self._said.append(line)
                if _REGISTERED in line:
                    self._has_datanode.set()
        self._has_datanode.set()  # there will be none

    def kill(self, server: str) -> None:
        """Have a server be gone."""
        process = self._running.pop(server)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self) -> None:
        """Have all be gone."""
        for server in list(self._running):
            self.kill(server)


@contextlib.contextmanager
def served() -> Iterator[Server]:
    """Run an HDFS while this lasts."""
    with tempfile.TemporaryDirectory() as home:
        server = Server(Path(home))
        try:
            server.start()
            yield server
        finally:
            server.end()
