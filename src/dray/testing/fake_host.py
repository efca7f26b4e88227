"""A simulated host: its device files, vendors' packages and tools, and metadata server."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, TracebackType
from typing import ClassVar

from dray.engines.rpc.actor_host import set_variables

_METADATA = "/computeMetadata/v1/instance/"


class FakeHost:
    """A context in which dray, and processes that it starts, see a simulated host's accelerators.

    The end of the context undoes everything. A context within another one adds to it, but has its
    own files and metadata server. Enter it before `dray.init()`, and leave it after
    `dray.shutdown()`.

    Args:
        files: Path, relative to the root -> content of the file.
        directories: Paths of empty directories.
        modules: Dotted name -> Python source of a module that replaces the real one.
        commands: Name -> output of a command. A text that starts with "#!" is the program itself.
        environment: Variables to set; a value of None unsets the variable.
        metadata: Key -> value of the cloud's metadata server. Without it, there is no such server.

    Example:
        >>> from dray.accelerators.vendors.neuron import Neuron
        >>> from dray.testing import FakeHost
        >>> devices = {"dev/neuron0": ""}
        >>> with FakeHost(files=devices, commands={"neuron-ls": '[{"nc_count": 2}]'}):
        ...     Neuron().find().count
        2
    """

    def __init__(
        self,
        *,
        files: Mapping[str, str] | None = None,
        directories: Sequence[str] = (),
        modules: Mapping[str, str] | None = None,
        commands: Mapping[str, str] | None = None,
        environment: Mapping[str, str | None] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._files = dict(files or {})
        self._directories = tuple(directories)
        self._modules = dict(modules or {})
        self._commands = dict(commands or {})
        self._environment = dict(environment or {})
        self._metadata = None if metadata is None else dict(metadata)
        self._undo = ExitStack()

    def __enter__(self) -> FakeHost:
        with ExitStack() as undo:
            self._begin(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._undo.close()

    def _begin(self, undo: ExitStack) -> None:
        home = Path(tempfile.mkdtemp(prefix="dray-host-"))
        undo.callback(shutil.rmtree, home, ignore_errors=True)
        root, modules, commands = home / "root", home / "modules", home / "bin"
        for directory in (root, modules, commands, *(root / d for d in self._directories)):
            directory.mkdir(parents=True, exist_ok=True)
        for path, text in self._files.items():
            _write(root / path, text)
        for name, source in self._modules.items():
            _write_module(modules, name, source)
        for name, text in self._commands.items():
            _write_command(commands / name, text)
        _import_from(modules, {name.partition(".")[0] for name in self._modules}, undo)
        variables = {
            "DRAY_HOST_ROOT": str(root),
            "DRAY_CLAIMS": str(home / "claims"),
            "GCE_METADATA_HOST": _serve(self._metadata, undo),
            "PATH": _before("PATH", commands),
            "PYTHONPATH": _before("PYTHONPATH", modules),
            **self._environment,
        }
        undo.callback(set_variables, set_variables(variables))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_module(directory: Path, name: str, source: str) -> None:
    *packages, last = name.split(".")
    for package in packages:
        directory = directory / package
        directory.mkdir(exist_ok=True)
        (directory / "__init__.py").touch()
    # A package, so that it can have submodules, whether they are written before or after it.
    _write(directory / last / "__init__.py", source)


def _write_command(path: Path, text: str) -> None:
    if not text.startswith("#!"):
        printed = path.with_name(f"{path.name}.txt")
        printed.write_text(text)
        text = f"#!/bin/sh\ncat '{printed}'\n"
    path.write_text(text)
    path.chmod(0o755)


def _import_from(directory: Path, names: set[str], undo: ExitStack) -> None:
    """Make imports find modules in a directory first, even if such names are imported already."""
    real = _forget(names)
    undo.callback(sys.modules.update, real)
    undo.callback(_forget, names)
    undo.callback(sys.path_importer_cache.pop, str(directory), None)
    undo.callback(sys.path.remove, str(directory))
    sys.path.insert(0, str(directory))
    importlib.invalidate_caches()


def _forget(names: set[str]) -> dict[str, ModuleType]:
    """Remove modules and their submodules from the imported ones, and return them."""
    theirs = [name for name in sys.modules if name.partition(".")[0] in names]
    return {name: sys.modules.pop(name) for name in theirs}


def _before(variable: str, directory: Path) -> str:
    return os.pathsep.join(filter(None, (str(directory), os.environ.get(variable))))


def _serve(metadata: Mapping[str, str] | None, undo: ExitStack) -> str:
    """Start a metadata server, and return its address; without metadata, the port is closed."""
    if metadata is None:
        # A bound socket reserves the port; it does not listen, so connections are refused.
        closed = undo.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"
    handler = type("Handler", (_Handler,), {"metadata": metadata})
    server = undo.enter_context(HTTPServer(("127.0.0.1", 0), handler))
    serving = threading.Thread(
        target=server.serve_forever, args=(0.02,), name="dray-fake-metadata", daemon=True
    )
    serving.start()
    undo.callback(serving.join)
    undo.callback(server.shutdown)
    return f"127.0.0.1:{server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    metadata: ClassVar[Mapping[str, str]] = {}
    timeout = 30  # a silent client must not block the others

    def do_GET(self) -> None:
        """Answer like Google Cloud's server, which requires its header."""
        key = self.path.partition(_METADATA)[2].removeprefix("attributes/")
        status = 200 if key in self.metadata else 404
        if self.headers.get("Metadata-Flavor") != "Google":
            status = 403
        body = self.metadata[key].encode() if status == 200 else b""
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
