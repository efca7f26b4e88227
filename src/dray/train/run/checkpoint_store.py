"""The checkpoint store of a run: commits of checkpoints, the one to resume from, and deletion."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dray.errors import StorageError, describe
from dray.train.config import CheckpointConfig
from dray.train.reported import ReportedCheckpointStatus
from dray.train.run.output.progress import Progress
from dray.train.run.report_tracker import PendingReport
from dray.train.run.retention import checkpoints_to_delete, score
from dray.train.storage.checkpoint_files import MANIFEST, secure, sync_directory
from dray.train.storage.manifest import PENDING, Committed, Validation
from dray.train.storage.place import Place, path_within
from dray.train.storage.run_directory import FIRST_CHECKPOINT, RunDirectory
from dray.train.worker.run_messages import Secured

_PLAIN = ReportedCheckpointStatus.COMMITTED.name


@dataclass
class CheckpointStore:
    """The checkpoints that a run has committed.

    A method that cannot write or delete a file raises StorageError.

    Attributes:
        validates: Whether they are validated, if their reports ask for it.
    """

    directory: RunDirectory
    config: CheckpointConfig
    progress: Progress
    validates: bool = False

    def __post_init__(self) -> None:
        self._kept = self.directory.checkpoints()
        self._care = self.directory.care(flush=self.config.flush, checksums=self.config.checksums)
        self._awaited: dict[int, set[int]] = {}  # report -> ranks that still secure its files

    @property
    def newest(self) -> Place | None:
        """The newest checkpoint, sound or not, if there is one."""
        return self._kept[-1].path if self._kept else None

    def newest_good(self, attempt: int) -> Committed | None:
        """Return the newest checkpoint that is as it was committed, if there is one.

        Those that are not are known from then on: they do not count, and nothing deletes them.

        Args:
            attempt: The attempt that is to go on from it: after the first, who finds none is told.
        """
        found = bool(self._kept)
        try:
            self.secure_rest()
        except StorageError as error:
            self.progress.warn(f"{error}; going back to the one before")
        for committed in reversed(list(self._kept)):
            compared = committed.to_compare(checksums=self.config.checksums)
            damaged = self.directory.first_damaged_file(compared)
            if damaged is None:
                self._flush_names(committed)
                return committed
            self._leave_out(committed, damaged)
        if found:
            self.progress.warn("no sound checkpoint is left: the run starts from the beginning")
        elif attempt and (first := self.directory.first_checkpoint()):
            self.progress.warn(
                f"the run had checkpoints ({first} was its first), but none is left in "
                f"{self.directory.path}: it starts from the beginning"
            )
        return None

    def _flush_names(self, committed: Committed) -> None:
        """See names onto the disk that a driver may have been killed before it flushed."""
        if self.config.flush and isinstance(committed.path, Path):
            with StorageError.instead(f"{committed.path} cannot be flushed to the disk"):
                sync_directory(committed.path)
                sync_directory(committed.path.parent)

    def leave_out_damaged(self, errors: Iterable[BaseException]) -> bool:
        """Leave out the checkpoint that workers have found to be damaged when they downloaded it.

        Returns:
            Whether there is such a one, so that it was not the training that has failed.
        """
        found = {error.damaged for error in errors if isinstance(error, StorageError)}
        for committed in list(self._kept):
            for where, file in filter(None, found):
                if str(committed.path) == where:
                    self._leave_out(committed, file)
                    return True
        return False

    def _leave_out(self, committed: Committed, file: str) -> None:
        self._kept.remove(committed)
        self.directory.take_damage(committed)
        self.progress.warn(
            f"{committed.path.name} is damaged ({file} has changed since it was committed) and "
            "left as it is; going back to the one before"
        )
        self.directory.record("damaged checkpoint", checkpoint=committed.path.name, file=file)

    def staging(self, entry: PendingReport) -> Place:
        """Return the directory, made if need be, in which a report's files are put together."""
        if entry.in_place and entry.directory is not None:
            return self.directory.path / entry.directory
        return self.directory.begin_staging(entry.report, entry.directory)

    def abandon(self, entry: PendingReport) -> None:
        """Delete what was put together for a report; what lies in place is the user's."""
        if not entry.in_place:
            self.directory.storage.abandon_staging(entry.report)

    def listed(self) -> tuple[tuple[str, tuple[dict[str, object], ...], str], ...]:
        """Return the checkpoints that are kept, oldest first, as `Listed` has them."""
        surplus = self._surplus()
        return tuple(
            (
                path_within(each.path),
                each.records(),
                each.validation.status if each.validation else _PLAIN,
            )
            for each in self._kept
            if each not in surplus
        )

    def pending(self) -> list[Committed]:
        """Return the checkpoints whose validation has not ended, oldest first."""
        return [each for each in self._kept if each.is_pending]

    def to_validate(self) -> list[Committed]:
        """Return those of them that this run validates."""
        return self.pending() if self.validates else []

    def validated(self, committed: Committed, validation: Validation) -> None:
        """Keep what a checkpoint's validation has come to; delete what is not to be kept now."""
        for index, known in enumerate(self._kept):
            if known.is_version_of(committed):  # else it is there no more, or replaced
                now = self._kept[index] = replace(known, validation=validation)
                try:
                    self.directory.describe_again(now)
                except StorageError as error:
                    self.directory.warn_once(f"{error}; later readers of the run will not see it")
                self._look_at_score(now)
                self.delete_surplus()
                return

    def commit(self, entry: PendingReport, world_size: int) -> Committed:
        """Make the staged files of a report a checkpoint: a provisional one, if ranks secure it."""
        path = self.directory.destination(entry.report, entry.directory)
        asked = entry.validation
        committed = Committed(
            path,
            entry.report,
            world_size,
            entry.staged,
            entry.metrics(),
            time.time(),
            None if asked is None else Validation(PENDING, asked),
            {rank: told.positions for rank, told in entry.told.items() if told.positions},
            self._care.boot if entry.to_secure else None,
        )
        staged = path if entry.in_place else self._staged(entry)
        if committed.is_provisional and (path / MANIFEST).exists():
            # A power cut may not take what it replaces before it is on the disk itself.
            files = secure(Path(path_within(staged)), committed.files, self._care)
            committed = replace(committed, files=files, boot=None)
        self.directory.commit(staged, committed, flush=self.config.flush)
        if not self._kept:
            self.directory.record(FIRST_CHECKPOINT, checkpoint=path.name)
        if entry.directory is not None:  # else it has a name of its own
            self._kept = [known for known in self._kept if known.path != path]
        self._kept.append(committed)
        if committed.is_provisional:
            self._awaited[entry.report] = set(entry.to_secure)
        self._look_at_score(committed)
        self.progress.committed(path)
        return committed

    def secured(self, rank: int, message: Secured) -> None:
        """Take note that a rank has seen its files of a checkpoint onto the disk, or could not."""
        awaited = self._awaited.get(message.report, set())
        awaited.discard(rank)
        if not awaited:
            self._awaited.pop(message.report, None)
        for known in self._provisional():
            if known.report == message.report:  # else it is there no more, or replaced
                if message.trouble is not None:
                    self._give_up(known, message.trouble)
                else:
                    now = replace(known, files={**known.files, **message.files})
                    self._describe(known, now if awaited else replace(now, boot=None))

    def secure_rest(self) -> None:
        """See the checkpoints onto the disk whose ranks have not done so, and can no more.

        Raises:
            StorageError: The disk does not take one; it is there no more.
        """
        self._awaited.clear()
        for known in self._provisional():
            path = known.path
            if known.first_damaged_file() is not None or not isinstance(path, Path):
                continue  # who looks for a sound one tells of it
            try:
                files = secure(path, known.files, self._care)
            except StorageError as error:
                self._give_up(known, describe(error))
                raise
            self._describe(known, replace(known, files=files, boot=None))

    def _provisional(self) -> list[Committed]:
        return [each for each in self._kept if each.is_provisional]

    def _give_up(self, known: Committed, trouble: str) -> None:
        """Delete a checkpoint that the disk does not take: what it has of it cannot be told."""
        self.progress.warn(f"{known.path.name} is given up: {trouble}")
        self.directory.record("checkpoint given up", checkpoint=known.path.name, cause=trouble)
        self._delete(known)
        if known in self._kept:  # it could not be deleted
            self._kept.remove(known)

    def _describe(self, known: Committed, now: Committed) -> None:
        """Keep what is known of a checkpoint now; once it is secured, in its manifest as well."""
        if not now.is_provisional:
            self.directory.describe_again(now, flush=self.config.flush)
        self._kept[self._kept.index(known)] = now
        self.delete_surplus()

    def _staged(self, entry: PendingReport) -> Place:
        ready = entry.ready
        return self.directory.storage.staging(entry.report) if ready is None else Path(ready.path)

    def delete_surplus(self) -> None:
        """Delete what is not to be kept, but for what ranks are at, or a power cut goes back to."""
        secured = [each for each in self._kept if not each.is_provisional]
        for old in self._surplus():
            if not (old.is_provisional or old in secured[-1:]):
                self._delete(old)

    def _surplus(self) -> list[Committed]:
        return checkpoints_to_delete(self._kept, self.config, validates=self.validates)

    def _delete(self, old: Committed) -> None:
        try:
            self.directory.storage.discard(old.path)
        except StorageError as error:
            if error.errno != errno.ENOENT:  # else the user has deleted it
                self.directory.warn_once(str(error))
                return  # it is tried again with the next one
        self._kept.remove(old)

    def _look_at_score(self, committed: Committed) -> None:
        attribute = self.config.checkpoint_score_attribute
        if attribute is None or committed.is_pending:
            return
        if score(committed, attribute, "max") is not None:
            return
        names = ", ".join(committed.rank_zero_metrics()) or "none"
        self.directory.warn_once(
            f"{committed.path.name} was reported without a number called {attribute!r} "
            "(checkpoint_score_attribute), so it ranks below those that have one; its metrics: "
            f"{names}"
        )
