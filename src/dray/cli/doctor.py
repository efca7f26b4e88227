"""The command `dray doctor`: this machine's devices, the settings of a run on it, and problems."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

from dray import host
from dray.accelerators import Family, Found, families
from dray.accelerators.detect import ids_on_offer
from dray.cli.diagnosis import BUILDS, counted, problems_of
from dray.cli.findings import (
    Accelerator,
    Advice,
    Findings,
    Jax,
    Machine,
    Report,
    SharedMemory,
    TemporaryDirectory,
    Torch,
    Training,
    VainVariable,
)
from dray.errors import ConfigError
from dray.host import bytes_in_words
from dray.scheduling.device_locks import holders, lock_name
from dray.settings import Settings, host_root
from dray.version import VERSION

_PACKAGES = ("torch", "jax", "jaxlib", "ray", "numpy")
_PATIENCE_S = 60

_ASK_TORCH = """
import json, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import torch
    import torch.distributed as distributed
    built = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")}
    built["mps"] = torch.backends.mps.is_built()
    seen = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "xpu": torch.xpu.device_count() if hasattr(torch, "xpu") else 0,
        "mps": int(torch.backends.mps.is_available()),
    }
backends = [
    name
    for name in ("gloo", "nccl", "xccl")
    if distributed.is_available() and getattr(distributed, f"is_{name}_available", bool)()
]
print(json.dumps({
    "version": torch.__version__,
    "built_for": [name for name, there in built.items() if there],
    "devices": seen,
    "backends": backends,
    "warnings": [str(w.message) for w in said if issubclass(w.category, UserWarning)],
}))
"""

_ASK_JAX = """
import json, jax
print(json.dumps({
    "version": jax.__version__,
    "platform": jax.default_backend(),
    "devices": jax.local_device_count(),
}))
"""


def examine() -> Report:
    """Examine this machine; return its devices, the settings of a run, and problems, as plain data.

    PyTorch and JAX run in processes of their own, so nothing is initialised in this process.
    """
    accelerators, error = _accelerators()
    found: Findings = {
        "dray": VERSION,
        "machine": _machine(),
        "accelerators": accelerators,
        "accelerators_error": error,
        "variables_in_vain": [] if error else _in_vain(accelerators),
        "torch": _ask("torch", _ASK_TORCH),
        "jax": _ask("jax", _ASK_JAX),
        "training": _training(accelerators),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }
    problems = problems_of(found)
    return {**found, "problems": [{"what": what, "do": do} for what, do in problems]}


# The facts.


def _machine() -> Machine:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cores": host.cpu_count(),
        "memory_bytes": host.memory_bytes(),
        "container": _container(),
        "shared_memory": _shared_memory(),
        "open_files": None if soft == resource.RLIM_INFINITY else soft,
        "temporary_directory": _temporary_directory(),
    }


def _container() -> str | None:
    """Return the container system that seems to run this process; None outside a container."""
    cgroups = host.read("proc/1/cgroup")
    signs = {
        "Kubernetes": "KUBERNETES_SERVICE_HOST" in os.environ or "kubepods" in cgroups,
        "Docker": bool(host.device_files(".dockerenv")) or "docker" in cgroups,
        "Podman": bool(host.device_files("run/.containerenv")),
    }
    return next((name for name, is_there in signs.items() if is_there), None)


def _shared_memory() -> SharedMemory:
    """Return whether /dev/shm exists, and its size; None if unknown, as on a simulated host."""
    is_there = host.is_directory("dev/shm")
    total = None
    if is_there and os.path.normpath(host_root()) == "/":
        about = os.statvfs("/dev/shm")
        total = about.f_blocks * about.f_frsize
    return {"is_there": is_there, "bytes": total}


def _temporary_directory() -> TemporaryDirectory:
    """Return the directory that a variable or the default names, and the one that Python uses."""
    names = [name for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]
    wanted = os.environ[names[0]] if names else "/tmp"
    try:
        used = tempfile.gettempdir()
    except OSError:
        used = None
    return {
        "variable": names[0] if names else None,
        "wanted": os.path.abspath(wanted),
        "used": used,
    }


def _accelerators() -> tuple[list[Accelerator], str]:
    """Return an entry for each family on this machine and ""; or none, and the error."""
    try:
        known = families()
    except Exception as error:  # noqa: BLE001 - other packages add families
        return [], _said(error)
    entries: list[Accelerator] = []
    for family in known:
        try:
            found = family.find()
        except Exception as error:  # noqa: BLE001 - the same
            found = Found(count=0, trouble=f"asking for them fails: {_said(error)}")
        if found is not None:
            before = [e for e in entries if e["resource"] == family.resource and e["count"]]
            entries.append(_entry(family, found, before[0]["name"] if before else None))
    return entries, ""


def _entry(family: Family, found: Found, offered_instead: str | None) -> Accelerator:
    there = list(found.ids or map(str, range(found.count)))
    on_offer, error = ([], "") if offered_instead or not there else _on_offer(family, found)
    return {
        "name": family.name,
        "title": family.title,
        "resource": family.resource,
        "count": found.count,
        "ids": there,
        "type": found.type,
        "driver": found.driver,
        "memory_bytes": found.memory_bytes,
        "names": list(found.names),
        "trouble": found.trouble,
        "variable": family.variable(os.environ),
        "variables": {name: os.environ.get(name) for name in family.variables},
        "on_offer": on_offer,
        "error": error,
        "offered_instead": offered_instead,
        "held": _held(family, dict.fromkeys([*on_offer, *there])),
        "torch_device": family.torch_device,
        "backend": family.backend,
        "jax_platform": family.jax_platform,
    }


def _on_offer(family: Family, found: Found) -> tuple[list[str], str]:
    """Return the ids that a run could use and ""; or none, and the error of the variable."""
    try:
        return list(ids_on_offer(family, found, None, os.environ)), ""
    except ConfigError as error:
        return [], str(error)
    except Exception as error:  # noqa: BLE001 - other packages add families
        return [], _said(error)


def _held(family: Family, ids: Iterable[str]) -> dict[str, int | None]:
    """Return the devices that programs of dray use, with their pids."""
    names = {lock_name(family.name, device): device for device in ids}
    try:
        return {names[name]: who.pid for name, who in holders(names).items()}
    except OSError:  # the check of the directory reports this
        return {}


def _in_vain(accelerators: Iterable[Accelerator]) -> list[VainVariable]:
    """Return the variables that name devices of a family that this machine does not have."""
    here = {name for entry in accelerators for name in entry["variables"]}
    vain: dict[str, VainVariable] = {}
    for family in families():
        name = family.variable(os.environ)
        if name is None or name not in os.environ or name in here or name in vain:
            continue
        try:
            ids = family.visible(os.environ)
        except Exception:  # noqa: BLE001 - what is no list of these may be meant for others
            continue
        if ids:
            value = os.environ[name]
            vain[name] = {"variable": name, "value": value, "title": family.title}
    return list(vain.values())


def _ask(package: str, program: str) -> Any:
    """Run a program that describes a framework, in a process of its own; return its answer."""
    if importlib.util.find_spec(package) is None:
        return {"installed": False}
    try:
        ended = subprocess.run(
            host.python(program),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            # The query must not reserve memory that runs need.
            env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        )
        if ended.returncode:
            lines = ended.stderr.strip().splitlines()
            error = lines[-1] if lines else f"its process ends with status {ended.returncode}"
        else:
            return {"installed": True, "error": "", **json.loads(ended.stdout.splitlines()[-1])}
    except subprocess.TimeoutExpired:
        error = f"it does not answer within {_PATIENCE_S} s"
    except (OSError, ValueError, TypeError, IndexError) as wrong:
        error = _said(wrong)
    return {"installed": True, "error": error, "version": _version(package)}


def _training(accelerators: Iterable[Accelerator]) -> Training:
    """Return the engine, collective backends and network interfaces that a run would use."""
    try:
        engine, error = Settings().engine, ""
    except ConfigError as wrong:
        engine, error = None, str(wrong)
    usable = [entry for entry in accelerators if entry["on_offer"]]
    address = _outward_address()
    given = {n: os.environ.get(n) for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    interfaces = _interfaces()
    loopback = host.interface_of("127.0.0.1")
    return {
        "engine": engine,
        "settings_error": error,
        "backends": {"CPU": "gloo", **{e["resource"]: e["backend"] for e in usable}},
        "interfaces": interfaces,
        "interface_variables": given,
        "interface": given["GLOO_SOCKET_IFNAME"]
        or loopback
        or next((name for name in interfaces if name in ("lo", "lo0")), None),
        "cluster_address": address,
        "cluster_interface": given["GLOO_SOCKET_IFNAME"]
        or (host.interface_of(address) if address else None),
    }


def _interfaces() -> list[str]:
    try:
        return [name for _, name in socket.if_nameindex()]
    except OSError:
        return []


def _outward_address() -> str | None:
    """Return this machine's address in its network; None if it has no network.

    Connecting a datagram socket sends nothing. The address is one that RFC 5737 reserves.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = sock.getsockname()[0]
        return address


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# The text.


def report(found: Report) -> str:
    """Return the findings of `examine` as text, with the problems at the end."""
    lines = [
        f"dray {found['dray']}",
        *_machine_lines(found["machine"]),
        "",
        *(_accelerator_lines(found["accelerators"]) or ["No accelerators"]),
        "",
        _torch_line(found["torch"]),
        _jax_line(found["jax"]),
        "Packages: "
        + (", ".join(f"{name} {version}" for name, version in found["packages"].items()) or "none"),
        *_training_lines(found["training"]),
        "",
        *_problem_lines(found["problems"]),
    ]
    return "\n".join(lines)


def _machine_lines(machine: Machine) -> list[str]:
    container = f", in a container ({machine['container']})" if machine["container"] else ""
    shared = machine["shared_memory"]
    room = f" of {bytes_in_words(shared['bytes'])}" if shared["bytes"] is not None else ""
    files = "any number" if machine["open_files"] is None else machine["open_files"]
    return [
        f"{machine['platform']}{container}, Python {machine['python']}",
        f"{machine['cores']} cores, {bytes_in_words(machine['memory_bytes'])} of memory, "
        f"{f'/dev/shm{room}' if shared['is_there'] else 'no /dev/shm'}, {files} open files, "
        f"temporary files in {machine['temporary_directory']['used'] or 'no place'}",
    ]


def _accelerator_lines(accelerators: Iterable[Accelerator]) -> list[str]:
    lines: list[str] = []
    for entry in accelerators:
        details = [
            entry["type"] or "of an unknown type",
            *([f"{bytes_in_words(entry['memory_bytes'])} each"] if entry["memory_bytes"] else []),
            *([f"driver {entry['driver']}"] if entry["driver"] else []),
        ]
        lines.append(f"{counted(entry['count'], entry['title'])}: {', '.join(details)}")
        lines += [
            f"  {device}: {name}"
            for device, name in zip(entry["ids"], entry["names"], strict=False)
        ]
        ids = ", ".join(entry["on_offer"]) or "none"
        lines.append(f"  on offer as {entry['resource']}: {ids}")
        given = [
            f"{name}={value}" for name, value in entry["variables"].items() if value is not None
        ]
        if given:
            lines.append(f"  limited by {', '.join(given)}")
        elif entry["variable"]:
            lines.append(f"  not limited: {entry['variable']} is not set")
        lines += [f"  {device} is in use by pid {pid}" for device, pid in entry["held"].items()]
    return lines


def _torch_line(torch: Torch) -> str:
    if not torch["installed"]:
        return "PyTorch is not installed"
    if torch["error"]:
        return f"PyTorch {torch['version'] or ''} fails"
    built = " and ".join(BUILDS[name] for name in torch["built_for"]) or "CPUs alone"
    seen = ", ".join(f"{count} as {name!r}" for name, count in torch["devices"].items() if count)
    return f"PyTorch {torch['version']}, built for {built}, sees {seen or 'no accelerators'}"


def _jax_line(jax: Jax) -> str:
    if not jax["installed"]:
        return "JAX is not installed"
    if jax["error"]:
        return f"JAX {jax['version'] or ''} fails"
    seen = (
        "the CPU alone" if jax["platform"] == "cpu" else f"{jax['devices']} as {jax['platform']!r}"
    )
    return f"JAX {jax['version']}, sees {seen}"


def _training_lines(training: Training) -> list[str]:
    backends = ", ".join(f"{name} on {what}" for what, name in training["backends"].items())
    cluster = training["cluster_interface"] or "the interface of the node's address"
    address = f" ({training['cluster_address']})" if training["cluster_address"] else ""
    return [
        f"A run uses the {training['engine'] or 'wrong'} engine; PyTorch's backend {backends}; "
        f"network interface {training['interface'] or 'unknown'}, on a cluster {cluster}{address}"
    ]


def _problem_lines(problems: Iterable[Advice]) -> list[str]:
    lines = []
    for number, problem in enumerate(problems, 1):
        lines += [f"{number}. {problem['what']}", f"   {problem['do']}"]
    return ["What is wrong:", *lines] if lines else ["Nothing is wrong."]
