"""The errors of run directories and checkpoints; they are public in `dray.errors`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from dray.errors.base import DrayError


class StorageError(DrayError, OSError):
    """A run directory or checkpoint cannot be written, read or trusted.

    Attributes:
        errno: The system's error number, such as `errno.ENOSPC`; None if dray itself has found the
            problem.
        damaged: The checkpoint, and its file that is not as it was committed; None for other
            problems.
    """

    damaged: tuple[str, str] | None = None

    @classmethod
    def of(cls, error: OSError, what: str) -> StorageError:
        """Return a StorageError for an error of the system.

        Args:
            error: The error of the system.
            what: The action that failed, with the path.
        """
        advice = _STORAGE_ADVICE.get(errno.errorcode.get(error.errno or 0, ""))
        new = cls(f"{what}: {error}{f'; {advice}' if advice else ''}")
        new.errno = error.errno
        return new

    @classmethod
    @contextlib.contextmanager
    def instead(cls, what: str) -> Iterator[None]:
        """Replace an OSError in the context by a StorageError.

        Args:
            what: The action that has failed, with the path.
        """
        try:
            yield
        except DrayError:  # raised while data is made, as by a user's function
            raise
        except OSError as error:
            raise cls.of(error, what) from error

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args, {**vars(self), "errno": self.errno})


# Advice by the name of the system's error.
_STORAGE_ADVICE = {
    "ENOSPC": "make room on the disk, and run again under the same name",
    "EDQUOT": "make room in your quota, and run again under the same name",
    "EFBIG": "raise the limit of the size of files (ulimit -f)",
    "EROFS": "the file system is read-only now, as after an error of its disk",
    "EIO": "look at the disk, or the network file system",
    "ESTALE": "the network file system has lost it; mount it again",
    "ENOENT": "it was deleted, or its file system is not mounted",
    "EEXIST": "it is a file, or a broken symbolic link",
    "EACCES": "it belongs to somebody else",
    "EPERM": "it belongs to somebody else",
    "ELOOP": "it is a symbolic link, which may lead anywhere; remove it",
    "ENAMETOOLONG": "choose a shorter name",
}


class NoRunError(StorageError, RuntimeError):
    """There is no run in a directory."""
