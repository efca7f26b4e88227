"""Two hosts in one: each with a network, a name, processes and temporary files of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.clusters import CONFIG, RAY
from tests.support.gates import until

ADDRESSES = ("10.99.0.1", "10.99.0.2")
PORT = 6379
# Temporary files of a host; what lies in /tmp is shared by both, as on a network file system.
OWN = "/var/tmp"
_SETUP = f"mount -t tmpfs none {OWN} && mount -t tmpfs none /dev/shm && ip link set lo up"


class Host:
    """A host that exists as long as its first process does.

    Args:
        name: Its hostname.
    """

    def __init__(self, name: str) -> None:
        namespaces = ("--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
        start = f"hostname {name} && {_SETUP} && echo up && exec sleep infinity"
        self._unshare = subprocess.Popen(
            ["unshare", *namespaces, "--fork", "--kill-child", "sh", "-c", start],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._unshare.stdout is not None
        if (said := self._unshare.stdout.readline()) != "up\n":
            self._unshare.communicate()
            pytest.skip(f"no host can be made here, as by root with iproute2: {said}")
        (first,) = psutil.Process(self._unshare.pid).children()
        self.pid = first.pid

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a command on this host."""
        return ["nsenter", f"--target={self.pid}", "--all", "--wd=.", *command]

    def run(self, *command: str) -> None:
        """Run a command on this host to its end."""
        subprocess.run(self.command(*command), check=True)

    def stop(self) -> None:
        """End every process of this host."""
        psutil.Process(self.pid).kill()  # with the first process all of its namespace end
        self._unshare.communicate()


class Program(NamedTuple):
    """A program that runs on a host, and the file that its output goes to."""

    process: subprocess.Popen[Any]
    log: Path

    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self.process.poll() is None

    def output(self) -> str:
        """Wait until it has ended well; return its output."""
        assert self.process.wait() == 0, self.log.read_text()
        return self.log.read_text()


class Hosts:
    """Two hosts with a cable between them, and a Ray cluster on both.

    Args:
        directory: Where the output of `ray start` goes.
        cpus: CPUs of each.
    """

    def __init__(self, directory: Path, cpus: int = 2) -> None:
        self.address = f"{ADDRESSES[0]}:{PORT}"
        self._hosts: list[Host] = []
        try:
            for name in ("near", "far"):
                self._hosts.append(Host(name))
            self.near, self.far = self._hosts
            self._connect()
            head = (
                f"--port={PORT}",
                "--head",
                f"--temp-dir={OWN}/ray",
                "--include-dashboard=false",
            )
            self._start_ray(0, directory, cpus, *head, f"--system-config={json.dumps(CONFIG)}")
            self._start_ray(1, directory, cpus, f"--address={self.address}")
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    def _connect(self) -> None:
        ends = [("cable", "netns", str(host.pid)) for host in self._hosts]
        link = ("type", "veth", "peer", "name")
        subprocess.run(["ip", "link", "add", "name", *ends[0], *link, *ends[1]], check=True)
        for host, address in zip(self._hosts, ADDRESSES, strict=True):
            host.run("ip", "address", "add", f"{address}/24", "dev", "cable")
            host.run("ip", "link", "set", "cable", "up")

    def _start_ray(self, index: int, directory: Path, cpus: int, *options: str) -> None:
        log = directory / f"{ADDRESSES[index]}.log"
        of_all = (f"--node-ip-address={ADDRESSES[index]}", f"--num-cpus={cpus}", "--block")
        process = self._start(self._hosts[index], *RAY, "start", *of_all, *options, log=log)

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()
            return "runtime started" in log.read_text()

        until(is_up)

    def _start(self, host: Host, *command: str, log: Path) -> subprocess.Popen[Any]:
        variables = {"HOME": OWN, "TMPDIR": OWN, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        return subprocess.Popen(
            host.command(*command),
            env={**os.environ, **variables},
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def start_program(self, folder: Path, *arguments: str) -> Program:
        """Start `program.py` of a folder on the near host, in a copy unseen by the far one."""
        log = folder.with_suffix(".log")
        copy = f'cp -r {folder} {OWN} && cd {OWN}/{folder.name} && exec "$@"'
        python = (sys.executable, "program.py", self.address, *arguments)
        return Program(self._start(self.near, "sh", "-c", copy, "sh", *python, log=log), log)

    def cut(self) -> None:
        """Cut the cable."""
        self.far.run("ip", "link", "set", "cable", "down")

    def stop(self) -> None:
        """End all processes of both."""
        for host in self._hosts:
            host.stop()
