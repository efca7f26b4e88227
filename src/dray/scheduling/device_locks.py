"""Locks of physical devices against other programs of this machine: a locked file for each device.

The kernel frees a lock when its owner dies, for whatever reason. A driver that finds a device
locked waits for one of these events: the owner touches the file after it has unlocked it, another
program writes its identity into it, or the process that is written there ends. In a PID namespace
of its own, as in a container, the end of that process cannot be watched, so the driver tries again
each second.

Every user can write to the directory of locks, so nothing in it is trusted. A device counts as
taken, until the directory changes, if its file is not a regular file, has a second name, cannot be
opened or has no valid content.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dray.errors import ConfigError
from dray.host import user_name
from dray.settings import locks_directory

_CHANGED = 0x2 | 0x4  # IN_MODIFY and IN_ATTRIB; `man 7 inotify`
_REPLACED = _CHANGED | 0x40 | 0x80 | 0x100 | 0x200  # also moved, made and deleted, in a directory
_EVENT = struct.Struct("iIII")
_TRY_AGAIN_S = 1

Device = tuple[str, str]  # resource name and id

# Calls back when a descriptor can be read; given None, it stops to, and closes the descriptor.
Watch = Callable[[int, Callable[[], object] | None], object]


class Holder(NamedTuple):
    """The holder of a device, as far as it is known.

    Attributes:
        trouble: Reason why nothing is known.
        pid_namespace: The number of the namespace that `pid` is of.
    """

    pid: int | None = None
    user: int | None = None
    trouble: str = ""
    pid_namespace: int | None = None

    def __str__(self) -> str:
        if self.pid is None:
            return self.trouble or "another program"
        return (
            f"pid {self.pid}" if self.user is None else f"pid {self.pid} of {user_name(self.user)}"
        )


class DeviceLocks:
    """The physical devices that this driver uses, and those that others do.

    Args:
        names: Name of each device, the same in all programs of this machine.
        on_free: Called when another program may have let a device go.
    """

    def __init__(
        self, names: Mapping[Device, str], watch: Watch, on_free: Callable[[Device], None]
    ) -> None:
        self._names = names
        self._watch = watch
        self._on_free = on_free
        # What wakes those who wait is Linux's; elsewhere they would wait for ever.
        self._directory = locks_directory() if sys.platform == "linux" else None
        self._held: dict[Device, tuple[int, int]] = {}  # a descriptor, and how often it is used
        self._inotify = -1
        self._touched: dict[int, list[Device]] = {}
        if names and self._directory is not None:
            _prepare(self._directory)
        # The pid, if it is one here, and what can be read when the process may have ended.
        self._owners: dict[Device, tuple[int | None, int]] = {}

    def take_all(self, devices: Sequence[Device]) -> Device | None:
        """Lock devices, all or none; return one that another program has, None if there is none."""
        for at, device in enumerate(devices):
            if not self.take(device):
                for taken in devices[:at]:
                    self.give_back(taken)
                return device
        return None

    def take(self, device: Device) -> bool:
        """Lock a device; return False, and have `on_free` called, if another program has it.

        It may be called before this returns.
        """
        if self._directory is None or device not in self._names:
            return True
        if device in self._held:
            fd, count = self._held[device]
            self._held[device] = fd, count + 1
            return True
        fd = _open(self._directory, self._names[device])
        if fd < 0:
            self._notice(str(self._directory), _REPLACED, device)
            fd = _open(self._directory, self._names[device])  # it may have been put right before
        if fd < 0:
            return False
        if not _lock(fd):
            self._wait_for(device, fd)
            if not _lock(fd):  # it may have been freed before anybody waited
                os.close(fd)
                return False
        with contextlib.suppress(OSError):  # the disk is full: nobody can know who it is
            os.ftruncate(fd, 0)
            os.pwrite(fd, _own_mark(), 0)
        self._held[device] = fd, 1
        return True

    def give_back(self, device: Device) -> None:
        """End one use of a device; the last one lets it go."""
        if device not in self._held:
            return
        fd, count = self._held[device]
        if count > 1:
            self._held[device] = fd, count - 1
            return
        del self._held[device]
        fcntl.flock(fd, fcntl.LOCK_UN)  # a fork of this process may have the descriptor as well
        with contextlib.suppress(OSError):  # the disk is gone; the end of this process is heard of
            os.utime(fd)
        os.close(fd)

    def others(self) -> dict[Device, Holder]:
        """Return which devices other programs hold, and who those are."""
        names = {name: key for key, name in self._names.items() if key not in self._held}
        return {names[name]: who for name, who in holders(names).items()}

    def _notice(self, path: str, events: int, device: Device) -> None:
        """Have a change of a file or directory tell that a device may be free."""
        import ctypes  # slow to import

        libc = ctypes.CDLL(None)
        if self._inotify < 0:
            self._inotify = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if self._inotify >= 0:  # or there are too many, and only the owner's end is heard of
                self._watch(self._inotify, self._on_touched)
        watched = libc.inotify_add_watch(self._inotify, path.encode(), events)
        devices = self._touched.setdefault(watched, [])
        if device not in devices:
            devices.append(device)

    def _wait_for(self, device: Device, fd: int) -> None:
        self._notice(f"/proc/self/fd/{fd}", _CHANGED, device)
        owner = _read(fd)
        pid = owner.pid if owner.pid_namespace == _own_pid_namespace() else None
        if device not in self._owners or self._owners[device][0] != pid:
            with contextlib.suppress(OSError):  # no descriptor is left: the file alone is watched
                end = _end_of(pid)
                self._forget_owner(device)
                self._owners[device] = pid, end
                self._watch(end, lambda: self._on_owner_gone(device))

    def _on_touched(self) -> None:
        data, at = b"", 0
        devices: list[Device] = []
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._inotify, 1 << 16)
        while at < len(data):
            watched, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            devices += self._touched.get(watched, ())
        for device in dict.fromkeys(devices):
            self._on_free(device)

    def _on_owner_gone(self, device: Device) -> None:
        self._forget_owner(device)
        self._on_free(device)

    def _forget_owner(self, device: Device) -> None:
        _, end = self._owners.pop(device, (None, -1))
        if end >= 0:
            self._watch(end, None)

    def close(self) -> None:
        """Let every device go; nothing is watched any more."""
        for device, (fd, _) in list(self._held.items()):
            self._held[device] = fd, 1
            self.give_back(device)
        for device in list(self._owners):
            self._forget_owner(device)
        if self._inotify >= 0:
            self._watch(self._inotify, None)
            self._inotify = -1


def _prepare(directory: str) -> None:
    """Have a directory where every user can lock files, and remove nobody else's."""
    try:
        if not os.path.lexists(directory):
            _make(directory)
        found = os.lstat(directory)
        owner = user_name(found.st_uid)
        if not stat.S_ISDIR(found.st_mode):
            raise PermissionError(f"it belongs to {owner}, and is not a directory")
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(f"it belongs to {owner}, and is not writable")
        if found.st_uid != os.getuid() and not found.st_mode & stat.S_ISVTX:
            raise PermissionError(
                f"it belongs to {owner}, and lets others remove the files (chmod +t)"
            )
    except OSError as error:
        raise ConfigError(
            f"devices cannot be locked in {directory}: {error}. Set DRAY_CLAIMS to a directory "
            "that every program which uses them can write, or to 0 to use them without locks"
        ) from error


def _make(directory: str) -> None:
    """Make it as a whole: who is killed in between leaves none that others cannot write."""
    new = f"{directory}-{os.urandom(8).hex()}"
    os.mkdir(new, 0o700)
    os.chmod(new, 0o1777)
    try:
        os.rename(new, directory)
    except OSError:  # another driver is as fast
        os.rmdir(new)


def _own_mark() -> bytes:
    mark = '{"pid": %d, "user": %d, "pid_namespace": %d}'
    return (mark % (os.getpid(), os.getuid(), _own_pid_namespace())).encode()


def _own_pid_namespace() -> int:
    """Return the number of this process's PID namespace; 0, which none has, if nothing tells it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _end_of(pid: int | None) -> int:
    """Return a descriptor that can be read when a process has ended, or in a second.

    Raises:
        OSError: There are too many descriptors.
    """
    if pid is not None:
        with contextlib.suppress(OSError):  # it has ended before, and a fork has its lock
            return os.pidfd_open(pid)
    import ctypes  # slow to import

    libc = ctypes.CDLL(None, use_errno=True)
    alarm: int = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
    if alarm < 0:
        raise OSError(ctypes.get_errno(), "no descriptor for a timer")
    once = (ctypes.c_long * 4)(0, 0, _TRY_AGAIN_S, 0)  # struct itimerspec
    libc.timerfd_settime(alarm, 0, once, None)
    return alarm


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(directory: str, name: str) -> int:
    """Open the file of a device; drivers of every user must be able to lock it.

    Returns:
        Its descriptor; -1 if it is no plain file, or may not be opened.
    """
    # Most systems let nobody open another user's file there with O_CREAT, though it is writable:
    # `man 5 proc_sys_fs`, protected_regular.
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    path = os.path.join(directory, name)
    with contextlib.suppress(OSError):
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):  # another one is as fast
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(fd, 0o666)
                return fd
            fd = os.open(path, flags)
        if _is_plain(os.fstat(fd)):
            return fd
        os.close(fd)
    return -1


def _is_plain(file: os.stat_result) -> bool:
    """Return whether it is a file that is nowhere else, where its content would be missed."""
    return stat.S_ISREG(file.st_mode) and file.st_nlink == 1


def _read(fd: int) -> Holder:
    """Return who has written itself into a file, which may hold anything."""
    import json  # slow to import

    try:
        said = json.loads(os.pread(fd, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return Holder()
    if not isinstance(said, dict):
        return Holder()
    pid, user, namespace = (said.get(name) for name in ("pid", "user", "pid_namespace"))
    is_pid = type(pid) is int and 0 < pid < 1 << 31
    return Holder(
        pid if is_pid else None,
        user if type(user) is int and user >= 0 else None,
        pid_namespace=namespace if type(namespace) is int and namespace > 0 else None,
    )


def lock_name(family: str, device: str) -> str:
    """Return what a device of a family is called in all programs of this machine."""
    return f"{family}-{device}".replace("/", "-")


def holders(names: Iterable[str]) -> dict[str, Holder]:
    """Return who holds which of some devices, for each name that is held, or cannot be looked at.

    It takes no lock to find out, or somebody who tries to at that moment would wait for ever. Linux
    tells of no locks that are held in other containers (PID namespaces): those are not among them.
    """
    directory, found = locks_directory(), {}
    if directory is None:
        return {}
    locked = _locked_files()
    for name in names:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(os.path.join(directory, name), flags)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            found[name] = _unknown(os.path.join(directory, name), error.strerror or str(error))
            continue
        try:
            file = os.fstat(fd)
            if not _is_plain(file):
                found[name] = _unknown(os.path.join(directory, name), "it is not a regular file")
            elif (file.st_dev, file.st_ino) in locked:
                found[name] = _read(fd)
            elif not os.access(os.path.join(directory, name), os.W_OK):
                found[name] = _unknown(os.path.join(directory, name), "it can only be read")
        finally:
            os.close(fd)
    return found


def _unknown(path: str, why: str) -> Holder:
    owner = ""
    with contextlib.suppress(OSError):  # it has just gone
        owner = f", which is {user_name(os.lstat(path).st_uid)}'s"
    return Holder(trouble=f"somebody, for {path}{owner}, cannot be locked: {why}")


def _locked_files() -> set[tuple[int, int]]:
    """Return device and inode of the files that somebody has locked (Linux).

    Source: `man 5 proc_locks`.
    """
    locked = set()
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if "FLOCK" in fields:
                major, minor, inode = fields[fields.index("FLOCK") + 4].split(":")
                locked.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    return locked
