"""The storage of a run: the operations that a run needs from the place where it is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from dray.errors import StorageError
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.copies import Care
from dray.train.storage.manifest import Committed
from dray.train.storage.place import Place
from dray.train.storage.sealed import Fits

P = TypeVar("P", bound=Place)


class Lines(Protocol):
    """A file of sealed lines, to which records are added: each whole, or not at all.

    Its methods raise StorageError where the file cannot be written.
    """

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line."""

    def append_text(self, text: bytes) -> None:
        """Add a line, given as a JSON object."""

    def close(self) -> None:
        """Free the file; `Storage.flush` sees to what is not written yet."""


class Log(Protocol):
    """A file to which bytes are added; its methods raise OSError where it cannot be written."""

    def write(self, data: memoryview, /) -> int | None:
        """Add bytes; return how many were taken."""

    def close(self) -> None:
        """Free the file."""


class Storage(ABC, Generic[P]):
    """The place of one run: `LocalStorage` is a directory, `ObjectStorage` a prefix of a bucket.

    Names are relative to the run. A method raises StorageError if it cannot read or write a file,
    or if the run is another driver's by now. The error names the file and says what to do.

    Args:
        path: The run's directory.
        warn_once: Tells the user of damage.

    Attributes:
        in_place: Whether the files of a checkpoint are put together where they are to stay,
            because nothing can be renamed there; its manifest then makes it exist.
    """

    in_place: ClassVar[bool]

    def __init__(self, path: P, warn_once: Callable[[str], object]) -> None:
        self.path = path
        self._warn_once = warn_once

    # The driver's.

    @abstractmethod
    def open(self) -> None:
        """Make what a run needs, and hold it against other drivers."""

    @abstractmethod
    def token(self) -> str | None:
        """Return what the driver that holds the run has written, if it can be seen here."""

    def flush(self) -> None:
        """Write what is not written yet."""

    @abstractmethod
    def close(self) -> None:
        """Write what is not written yet, if that can be; let other drivers have the run."""

    @abstractmethod
    def recover(self) -> None:
        """Clear away what killed workers, or a killed driver, had not committed or deleted."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, and in the run's own those of checkpoints under way."""

    @abstractmethod
    def write(self, name: str, text: bytes) -> None:
        """Write a file, whole or not at all."""

    @abstractmethod
    def begin_logs(self, folder: str) -> None:
        """Make a folder for logs, by which later drivers know of the attempt."""

    @abstractmethod
    def log(self, name: str) -> Log:
        """Open a log; raises OSError if that cannot be."""

    # The commit of a checkpoint: ranks stage files, the driver commits.

    @abstractmethod
    def staging(self, report: int) -> P:
        """Return where the files of a report's checkpoint are put together."""

    @abstractmethod
    def begin_staging(self, report: int, name: str | None) -> P:
        """Make the place where the files of a report's checkpoint are put together.

        Args:
            name: Final name of the checkpoint; given where `in_place`.
        """

    @abstractmethod
    def abandon_staging(self, report: int) -> None:
        """Delete what was put together of a report's checkpoint."""

    @abstractmethod
    def stage(
        self, source: str, staging: P, names: Sequence[str], care: Care
    ) -> Mapping[str, Fingerprint]:
        """Put files of a local directory where a checkpoint is put together; called by ranks."""

    @abstractmethod
    def commit(self, staged: P, committed: Committed, *, flush: bool) -> None:
        """Make a checkpoint exist, whole, under its final name, where it may lie already."""

    def describe(self, path: P, committed: Committed, *, flush: bool) -> None:
        """Write the manifest of a checkpoint anew, unless somebody has deleted it meanwhile."""
        if committed.damaged_size() is None:
            self.commit(path, committed, flush=flush)

    @abstractmethod
    def discard(self, path: P) -> None:
        """Delete a checkpoint, so that half of it never counts."""

    # Everybody's.

    @abstractmethod
    def manifests(self, names: Sequence[str]) -> Iterator[Committed | StorageError | None]:
        """Yield the checkpoints of these names: an error if damaged, None without a manifest."""

    @abstractmethod
    def is_abandoned(self, name: str) -> bool:
        """Return whether something without a manifest is there, and nobody is at it."""

    @abstractmethod
    def lines(self, name: str, generation: int | None) -> Lines:
        """Open a file of lines to add to it.

        Args:
            generation: A number that no other writer of this file has had; None for the driver
                that holds the run.
        """

    @abstractmethod
    def read_lines(
        self, name: str, warn: Callable[[str], object], fits: Fits
    ) -> Iterator[dict[str, Any]]:
        """Yield the records of a file of lines; of those that are damaged, only warn."""

    @abstractmethod
    def last_line(self, name: str, fits: Fits) -> dict[str, Any] | None:
        """Return the last record of a long file of lines, without a look at the others.

        Returns:
            The record; None if it is damaged, or the file is short enough to read all of it.
        """
