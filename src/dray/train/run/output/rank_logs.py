"""Logs of the ranks of an attempt, each kept in a file, and shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dray.engines.base import Actor, Output
from dray.errors import StorageError
from dray.train.run.output.progress import Progress
from dray.train.storage.base import Log
from dray.train.storage.run_directory import RunDirectory

# Files that are open at once: a process may have a thousand by default, a run more ranks than that.
_MOST_OPEN = 256


@dataclass
class Logs:
    """The log files of one attempt after another.

    Attributes:
        rank_of: Returns the rank of an actor; workers write before they have ranks.
        progress: Shows what is written; None shows nothing.
    """

    directory: RunDirectory
    rank_of: Callable[[Actor], int | None]
    progress: Progress | None
    _attempt: int = 0
    _files: dict[int, Log] = field(default_factory=dict)
    _early: list[Output] = field(default_factory=list)
    _ranked: bool = False

    def begin(self, attempt: int) -> None:
        """Begin another attempt, whose workers have no ranks yet."""
        self.close()
        self._attempt = attempt

    def give_ranks(self) -> None:
        """Make room for a file for each rank that writes: workers have ranks now.

        Raises:
            StorageError: It cannot be made.
        """
        self._ranked = True
        self.directory.begin_logs(self._attempt)
        early, self._early = self._early, []
        for event in early:
            self.take(event)

    def take(self, event: Output) -> None:
        """Keep what a worker has written, if the disk takes it, and show it."""
        rank = self.rank_of(event.actor) if self._ranked else None
        if rank is None:
            self._early.append(event)
            return
        self._keep(rank, event.data)
        if self.progress is not None:
            self.progress.output(rank, event.stream, event.data)

    def _keep(self, rank: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            file = self._files.get(rank) or self._open(rank)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as error:
            path = self.directory.log_path(self._attempt, rank)
            self.directory.warn_once(
                f"the log {path} cannot be written ({error}); the output of ranks is lost, "
                "except for the lines shown here"
            )

    def _open(self, rank: int) -> Log:
        """Open a rank's file, and close the one that has been open for longest if need be."""
        if len(self._files) >= _MOST_OPEN:
            self._files.pop(next(iter(self._files))).close()
        file = self._files[rank] = self.directory.log(self._attempt, rank)
        return file

    def close(self) -> None:
        """Close the files; what workers wrote that died before they had ranks is kept too."""
        if self._early and not self._ranked:
            try:
                self.give_ranks()
            except StorageError as error:
                self.directory.warn_once(str(error))
        for file in self._files.values():
            file.close()
        self._files = {}
        self._early = []
        self._ranked = False
