"""This machine's cores, memory and interfaces, within a container's limits."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator

from dray.settings import host_root


def cpu_count() -> int:
    """Return the cores this process may use: affinity and quotas of control groups respected."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        cores = os.cpu_count() or 1
    for folder, version in _control_groups("cpu"):
        if version == 2:
            quota, _, period = _seen(f"{folder}/cpu.max").partition(" ")
        else:
            quota = _seen(f"{folder}/cpu.cfs_quota_us")
            period = _seen(f"{folder}/cpu.cfs_period_us") if quota.isdigit() else ""
        if quota.isdigit() and period.isdigit():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_bytes() -> int:
    """Return the memory this process may use, in bytes: limits of control groups respected."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, group_limit("memory", "memory.max", "memory.limit_in_bytes") or total)


def group_limit(controller: str, name: str, name_in_1: str) -> int | None:
    """Return the least that the control groups of this process say; None if they say nothing.

    Args:
        controller: Such as "memory".
        name: The file that says it.
        name_in_1: The same in version 1.
    """
    groups = _control_groups(controller)
    said = [_seen(f"{folder}/{name if v == 2 else name_in_1}") for folder, v in groups]
    return min((int(text) for text in said if text.isdigit()), default=None)


def _control_groups(controller: str) -> Iterator[tuple[str, int]]:
    """Yield the groups that this process is in, from its own up to the root: folder and version.

    A container sees its own group as the root, but may be told the name that it has outside.
    Source: `man 7 cgroups`, /proc/pid/cgroup.
    """
    for line in _seen("proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            version = 1 if controllers else 2
            root = f"sys/fs/cgroup/{controller}" if controllers else "sys/fs/cgroup"
            while group.strip("/"):
                yield root + group, version
                group = os.path.dirname(group)
            yield root, version


def bytes_in_words(count: float) -> str:
    """Return a number of bytes as people read it.

    Example:
        >>> from dray.host import bytes_in_words
        >>> bytes_in_words(50 * 2**20), bytes_in_words(3 * 2**40)
        ('50 MiB', '3 TiB')
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def boot_id() -> str | None:
    """Return what names this machine since its start, as no other time since it was switched on.

    None where that cannot be known. What is in the kernel's page cache lives as long.
    """
    return _read("/proc/sys/kernel/random/boot_id") or None


def user_name(uid: int) -> str:
    """Return a user's name, or words for one that has none here."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


def interface_of(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if that cannot be told.

    Source: `man 7 netdevice`, SIOCGIFADDR.
    """
    if sys.platform != "linux":
        return None
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(sock, 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no such address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def python(code: str) -> list[str]:
    """Return the command that runs code in a Python of its own, with this one's import path.

    By itself it would look for modules in the working directory first, where others may put some.
    """
    return [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{code}"]


def device_files(pattern: str) -> list[str]:
    """Return the files of this machine that match a pattern, such as "dev/nvidia[0-9]*".

    They are relative to the root, or to the directory that `DRAY_HOST_ROOT` names, and in the order
    of the numbers in them.
    """
    folder, _, beginning = pattern[: pattern.find("*")].partition("[")[0].rpartition("/")
    try:
        names = os.listdir(os.path.join(host_root(), folder))
    except OSError:
        return []
    # Most are not there, and to compile a pattern takes long.
    return _matches(pattern) if any(name.startswith(beginning) for name in names) else []


def _matches(pattern: str) -> list[str]:
    import glob  # slow to import

    found = glob.glob(pattern, root_dir=host_root())
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path)])


def is_directory(path: str) -> bool:
    """Return whether this machine has such a directory; see `device_files`."""
    return os.path.isdir(os.path.join(host_root(), path))


def read(path: str) -> str:
    """Return what a file of this machine says, or "" if it cannot be read; see `device_files`."""
    return _read(os.path.join(host_root(), path))


def _seen(path: str) -> str:
    """Return what a file says of this process; a made-up host need not have one."""
    said = read(path)
    return said if said or host_root() == "/" else _read(f"/{path}")


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python itself or to an installed package."""
    parts = file.split(os.sep)
    return not {"site-packages", "dist-packages"}.isdisjoint(parts) or file.startswith(_stdlib())


@functools.cache
def _stdlib() -> str:
    return os.path.dirname(os.__file__) + os.sep
