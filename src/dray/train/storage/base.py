"""The storage of a run: what a run asks of the place where it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dray.errors import StorageError
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.copies import Care
from dray.train.storage.manifest import Committed
from dray.train.storage.place import Place

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


class Storage(Protocol[P]):
    """The place of one run: `LocalStorage` is a directory, `ObjectStorage` a prefix of a bucket.

    Names are relative to the run. What raises StorageError says which file, and what to do.

    Attributes:
        in_place: Whether the files of a checkpoint are put together where they are to stay,
            because nothing can be renamed there; its manifest then makes it exist.
    """

    in_place: bool

    # The driver's.

    def open(self) -> None:
        """Make what a run needs, and hold it against other drivers."""

    def token(self) -> str | None:
        """Return what the driver that holds the run has written, if it can be seen here."""

    def flush(self) -> None:
        """Write what is not written yet."""

    def close(self) -> None:
        """Write what is not written yet; let other drivers have the run."""

    def recover(self) -> None:
        """Clear away what killed workers, or a killed driver, had not committed or deleted."""

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder."""

    def write(self, name: str, text: bytes) -> None:
        """Write a file, whole or not at all."""

    def begin_logs(self, folder: str) -> None:
        """Make a folder for logs."""

    def log(self, name: str) -> Log:
        """Open a log; raises OSError if that cannot be."""

    def staging(self, report: int) -> P:
        """Return where the files of a report's checkpoint are put together."""

    def begin_staging(self, report: int, name: str | None) -> P:
        """Make the place where the files of a report's checkpoint are put together.

        Args:
            report: The report's number.
            name: Final name of the checkpoint; given where `in_place`.
        """

    def abandon_staging(self, report: int) -> None:
        """Delete what was put together of a report's checkpoint."""

    def commit(self, staged: P, committed: Committed, *, flush: bool) -> None:
        """Make a checkpoint exist, whole, under its final name, where it may lie already."""

    def discard(self, path: P) -> None:
        """Delete a checkpoint, so that half of it never counts."""

    # The ranks'.

    def stage(
        self, source: str, staging: P, names: Sequence[str], care: Care
    ) -> Mapping[str, Fingerprint]:
        """Put files of a local directory where a checkpoint is put together."""

    # Everybody's.

    def manifests(self, names: Sequence[str]) -> Iterator[Committed | StorageError | None]:
        """Yield the checkpoints of these names: an error if damaged, None without a manifest."""

    def is_abandoned(self, name: str) -> bool:
        """Return whether something without a manifest is there, and nobody is at it."""

    def lines(self, name: str, generation: int | None) -> Lines:
        """Open a file of lines to add to it.

        Args:
            name: Its name.
            generation: A number that no other writer of this file has had; None for the driver
                that holds the run.
        """

    def read_lines(
        self,
        name: str,
        warn: Callable[[str], object],
        fits: Callable[[dict[str, Any]], bool] = lambda record: True,
    ) -> Iterator[dict[str, Any]]:
        """Yield the records of a file of lines; of those that are damaged, only warn."""

    def last_line(self, name: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Return the last record of a long file of lines, without a look at the others.

        Returns:
            The record; None if it is damaged, or the file is short enough to read all of it.
        """
