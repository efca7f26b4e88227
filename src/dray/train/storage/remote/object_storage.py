"""A prefix of an object store as the storage of a run, or any other file system of fsspec.

On an object store nothing can be renamed or appended to. The files of a checkpoint are uploaded to
their final place, and the manifest after them. Its upload is one request, done or not, and makes
the checkpoint exist. To delete a checkpoint, its manifest is deleted first. During either operation
a file `.unfinished-<name>` exists. A later driver deletes the files that a killed one has left, and
takes another number, since a worker that is not dead yet may still upload.

If a checkpoint replaces one of its name, the old one is copied aside first, on the storage itself.
`.replaced-<name>` is whole when it has a manifest, and is put back if the new one was never
committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dray.errors import StorageError
from dray.train.storage.base import Storage
from dray.train.storage.checkpoint_files import MANIFEST
from dray.train.storage.checksums import Fingerprint
from dray.train.storage.copies import Care
from dray.train.storage.manifest import Committed, manifest_text, parse_manifest
from dray.train.storage.names import is_checkpoint_name
from dray.train.storage.place import RemotePath
from dray.train.storage.remote.lease import Lease, newest_lease, read_lease
from dray.train.storage.remote.parts import PartedLines, PartedLog, Parts, is_part
from dray.train.storage.remote.retry import persistently
from dray.train.storage.remote.transfer import upload
from dray.train.storage.sealed import Fits, last_record, records

_UNFINISHED = ".unfinished-"
_REPLACED = ".replaced-"
_READERS = 16


class ObjectStorage(Storage[RemotePath]):
    """A run on an object store."""

    in_place = True

    def __init__(self, path: RemotePath, warn_once: Callable[[str], object]) -> None:
        super().__init__(path, warn_once)
        self._lease: Lease | None = None
        self._parts = Parts(path, warn_once)
        self._staged: dict[int, RemotePath] = {}
        self._used: set[str] = set()  # names of unfinished ones, which no other may have again
        self._replacing: set[str] = set()  # those of them that were there before

    # The driver's.

    def open(self) -> None:
        lease = Lease(self.path)
        lease.take()
        self._lease = lease
        try:
            self._clear_away()  # unchecked: who comes at the same instant is seen later
        except BaseException:
            self.close()
            raise

    def token(self) -> str | None:
        token = read_lease(self.path, newest_lease(self.path)).get("token")
        return token if isinstance(token, str) else None

    def flush(self) -> None:
        self._parts.flush()

    def close(self) -> None:
        try:
            self._parts.close()
        except StorageError as error:  # who must know has asked `flush`
            self._warn_once(str(error))
        finally:
            if self._lease is not None:
                self._lease.release()
                self._lease = None

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def recover(self) -> None:
        self._check_lease()
        self._clear_away()

    def _clear_away(self) -> None:
        names = self.path.names()
        for name in self._meant_by(_REPLACED, names):
            self._put_back(name)
        for name in self._meant_by(_UNFINISHED, names):
            self._used.add(name)
            if not (self.path / name / MANIFEST).exists():
                self._delete(self.path / name)
            (self.path / f"{_UNFINISHED}{name}").delete()
        self._staged.clear()
        self._replacing.clear()

    def _meant_by(self, prefix: str, names: Sequence[str]) -> Iterator[str]:
        """Yield the checkpoints whose names stand behind a prefix; others may have written it."""
        for name in names:
            meant = name.removeprefix(prefix)
            if meant != name and is_checkpoint_name(meant):
                yield meant
            elif meant != name:
                self._warn_once(
                    f"{self.path / name} is left as it is: no checkpoint can have the name "
                    f"{meant!r}, so dray did not make it; delete it yourself"
                )

    def _put_back(self, name: str) -> None:
        """Undo a replacement that did not come to its end; forget one that did."""
        original, aside = self.path / name, self.path / f"{_REPLACED}{name}"
        if not (original / MANIFEST).exists() and (aside / MANIFEST).exists():
            self._delete(original)
            self._move(aside, original)
        self._delete(aside)

    def names(self, folder: str = "") -> list[str]:
        if folder:
            return (self.path / folder).names()
        return sorted({*self.path.names(), *self._used})

    def write(self, name: str, text: bytes) -> None:
        self._check_lease()
        (self.path / name).write_bytes(text)

    def begin_logs(self, folder: str) -> None:
        self._parts.begin(f"{folder}/rank-00000.log", self._number)  # an empty log

    @property
    def _number(self) -> int:
        return 0 if self._lease is None else self._lease.number

    def log(self, name: str) -> PartedLog:
        return PartedLog(self._parts, name, self._number)

    # The commit of a checkpoint: ranks upload files, the driver writes the manifest.

    def staging(self, report: int) -> RemotePath:
        return self._staged[report]

    def begin_staging(self, report: int, name: str | None) -> RemotePath:
        assert name is not None
        self._check_lease()
        target = self.path / name
        if (target / MANIFEST).exists():
            aside = self.path / f"{_REPLACED}{name}"
            self._delete(aside)
            self._move(target, aside)
            self._replacing.add(name)
        (self.path / f"{_UNFINISHED}{name}").write_bytes(b"")
        self._used.add(name)
        self._staged[report] = target
        return target

    def abandon_staging(self, report: int) -> None:
        self._check_lease()
        target = self._staged.pop(report)
        self._delete(target)
        if target.name in self._replacing:
            self._replacing.remove(target.name)
            self._put_back(target.name)
        (self.path / f"{_UNFINISHED}{target.name}").delete()

    def commit(self, staged: RemotePath, committed: Committed, *, flush: bool) -> None:
        lost = committed.damaged_size()
        if lost is not None:
            raise StorageError(
                f"the checkpoint {staged} cannot be committed: {lost} is missing or differs from "
                "the upload; has another program deleted or written it?"
            )
        self._check_lease()
        (staged / MANIFEST).write_bytes(manifest_text(committed))
        if self._staged.pop(committed.report, None) is not None:
            (self.path / f"{_UNFINISHED}{staged.name}").delete()
        if staged.name in self._replacing:
            self._replacing.remove(staged.name)
            self._delete(self.path / f"{_REPLACED}{staged.name}")
        self._used.discard(staged.name)

    def describe(self, path: RemotePath, committed: Committed, *, flush: bool) -> None:
        if path.name in self._replacing:  # it lies aside; in its place are files of the next one
            path = self.path / f"{_REPLACED}{path.name}"
            committed = dataclasses.replace(committed, path=path)
        super().describe(path, committed, flush=flush)

    def discard(self, path: RemotePath) -> None:
        self._check_lease()
        if path.name in self._replacing:
            self._replacing.remove(path.name)
            self._delete(self.path / f"{_REPLACED}{path.name}")
            return
        marker = self.path / f"{_UNFINISHED}{path.name}"
        marker.write_bytes(b"")
        self._delete(path)
        marker.delete()
        self._used.discard(path.name)

    def _delete(self, folder: RemotePath) -> None:
        """Delete a folder, its manifest first."""
        (folder / MANIFEST).delete()
        folder.delete(recursive=True)

    def _move(self, source: RemotePath, target: RemotePath) -> None:
        """Give a checkpoint another name, which nothing has; one of them is whole at any time."""
        if source.is_renamed_whole:
            source.rename(target)
        else:
            self._copy(source, target)
            self._delete(source)

    def _copy(self, source: RemotePath, target: RemotePath) -> None:
        """Copy a checkpoint on the storage itself, its manifest last."""

        def copy(name: str) -> None:
            one, other = (source / name).path, (target / name).path
            persistently(
                f"{source / name} cannot be copied to {target / name}",
                lambda: source.filesystem.cp_file(one, other),
            )

        names = [name for name in source.sizes() if name != MANIFEST]
        target.make_folders(names)
        with ThreadPoolExecutor(_READERS, "dray-copies") as pool:
            list(pool.map(copy, names))
        (target / MANIFEST).write_bytes((source / MANIFEST).read_bytes())

    # The ranks'.

    def stage(
        self, source: str, staging: RemotePath, names: Sequence[str], care: Care
    ) -> dict[str, Fingerprint]:
        fingerprints = upload(source, staging, names, checksums=care.checksums)
        self._parts.flush()  # what this process has added to growing files
        return fingerprints

    # Everybody's.

    def manifests(self, names: Sequence[str]) -> Iterator[Committed | StorageError | None]:

        def read(name: str) -> Committed | StorageError | None:
            try:
                text = (self.path / name / MANIFEST).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
            try:
                return parse_manifest(self.path / name, text)
            except StorageError as error:
                return error

        with ThreadPoolExecutor(_READERS, "dray-readers") as pool:
            yield from pool.map(read, names)

    def is_abandoned(self, name: str) -> bool:
        if not (self.path / name).is_dir() or (self.path / f"{_UNFINISHED}{name}").exists():
            return False
        return not (self.path / name / MANIFEST).exists()  # else made since it was looked for

    def lines(self, name: str, generation: int | None) -> PartedLines:
        writer = self._number if generation is None else generation
        return PartedLines(self._parts, _in_folder(name), writer)

    def read_lines(
        self, name: str, warn: Callable[[str], object], fits: Fits
    ) -> Iterator[dict[str, Any]]:
        parts = self._parts_of(name)
        with ThreadPoolExecutor(_READERS, "dray-readers") as pool:
            for part, text in zip(parts, pool.map(RemotePath.read_bytes, parts), strict=True):
                yield from records(part, text.split(b"\n"), warn, fits)

    def last_line(self, name: str, fits: Fits) -> dict[str, Any] | None:
        parts = self._parts_of(name)
        for part in reversed(parts if len(parts) > _READERS else []):
            text = part.read_bytes()
            if text:
                return last_record(text, fits)
        return None

    def _parts_of(self, name: str) -> list[RemotePath]:
        folder, _, own = _in_folder(name).rpartition("/")
        place = self.path / folder
        return [place / part for part in sorted(place.names()) if is_part(part, own)]


def _in_folder(name: str) -> str:
    """Return the name of a growing file, whose parts have a folder."""
    return name if "/" in name else f"{name.partition('.')[0]}/{name}"
