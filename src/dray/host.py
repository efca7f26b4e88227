"""This machine's cores, memory and interfaces, within a container's limits."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator

from dray.settings import host_root


def cpu_count() -> int:
    """Return the number of cores that this process may use by its affinity and control groups."""
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
    """Return the memory in bytes that this process may use by its control groups."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, group_limit("memory", "memory.max", "memory.limit_in_bytes") or total)


def group_limit(controller: str, name: str, name_in_1: str) -> int | None:
    """Return the lowest limit of this process's control groups; None if they have no limit.

    Args:
        controller: Name of the controller, such as "memory".
        name: The file with the limit.
        name_in_1: The file with the limit in version 1 of control groups.
    """
    groups = _control_groups(controller)
    said = [_seen(f"{folder}/{name if v == 2 else name_in_1}") for folder, v in groups]
    return min((int(text) for text in said if text.isdigit()), default=None)


def _control_groups(controller: str) -> Iterator[tuple[str, int]]:
    """Yield directory and version of this process's control groups, from its own to the root.

    A container sees its own group as the root, but /proc may show the group's name outside.
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
    """Return a number of bytes as text with a unit.

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
    """Return the id of this machine's current boot; None if it is unknown.

    The contents of the kernel's page cache exist for the same time.
    """
    return _read("/proc/sys/kernel/random/boot_id") or None


def user_name(uid: int) -> str:
    """Return a user's name, or "user" and the uid if the user has no name here."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"user {uid}"


def interface_of(address: str) -> str | None:
    """Return the network interface that has an IPv4 address; None if it is unknown.

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
            except OSError:  # the interface has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def python(code: str) -> list[str]:
    """Return the command that runs code in another Python process, with this one's import path.

    By default Python would look for modules in the working directory first, where other users may
    put some.
    """
    return [sys.executable, "-c", f"import sys\nsys.path[:] = {sys.path!r}\n{code}"]


def device_files(pattern: str) -> list[str]:
    """Return the files of this machine that match a pattern, such as "dev/nvidia[0-9]*".

    The paths are relative to the root, or to the directory that `DRAY_HOST_ROOT` names. They are
    sorted by the numbers in them.
    """
    folder, _, beginning = pattern[: pattern.find("*")].partition("[")[0].rpartition("/")
    try:
        names = os.listdir(os.path.join(host_root(), folder))
    except OSError:
        return []
    # Most patterns have no files, and compiling a pattern is slow.
    return _matches(pattern) if any(name.startswith(beginning) for name in names) else []


def _matches(pattern: str) -> list[str]:
    import glob  # slow to import

    found = glob.glob(pattern, root_dir=host_root())
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path)])


def is_directory(path: str) -> bool:
    """Return whether this machine has such a directory; see `device_files`."""
    return os.path.isdir(os.path.join(host_root(), path))


def read(path: str) -> str:
    """Return the content of a file; "" if it cannot be read. See `device_files` for its path."""
    return _read(os.path.join(host_root(), path))


def _seen(path: str) -> str:
    """Return the content of a file about this process; a simulated host may lack the file."""
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
