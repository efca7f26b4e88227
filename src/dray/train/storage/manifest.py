"""The manifest of a committed checkpoint: files with checksums, metrics, positions, validation."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dray import host
from dray.errors import StorageError
from dray.train.storage.checkpoint_files import (
    MANIFEST,
    MANIFEST_DRAFT,
    METADATA,
    METADATA_DRAFT,
    in_threads,
)
from dray.train.storage.checksums import Fingerprint, matches
from dray.train.storage.metrics_codec import decode_all, json_bytes
from dray.train.storage.openers import regular, unlinked
from dray.train.storage.paths import is_file_name
from dray.train.storage.place import Place, RemotePath
from dray.train.storage.sealed import seal, unseal

_FORMAT = 1
# More than any run has: what goes on from a manifest keeps something for each.
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Validation:
    """The validation that a checkpoint came with.

    Attributes:
        status: The name of a `ReportedCheckpointStatus`.
        asked: Arguments and limit that its report gives.
        metrics: Metrics it has found, encoded; None if it has not.
    """

    status: str
    asked: Mapping[str, object] = field(default_factory=dict)
    metrics: dict[str, object] | None = None


PENDING = "PENDING_VALIDATION"


@dataclass(frozen=True)
class Committed:
    """A committed checkpoint, as its manifest tells it.

    Attributes:
        report: The number of the report it came with, from 0.
        world_size: Number of ranks that made it.
        files: Path in the directory -> size and checksum; without metadata, which users may change.
        metrics: rank -> that rank's metrics in the same report, encoded.
        time: Time of the commit, in seconds since 1970.
        validation: The one that was asked for, if one was.
        positions: rank -> dataset -> the rank's position in it, for ranks that read any.
        boot: The machine, since its start, whose memory may hold what is not on the disk yet: then
            the checkpoint is provisional, and checksums may not be there. None once it is secured.
    """

    path: Place
    report: int
    world_size: int
    files: Mapping[str, Fingerprint]
    metrics: Mapping[int, dict[str, object]]
    time: float = field(default=0.0, compare=False)
    validation: Validation | None = field(default=None, compare=False)
    positions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    boot: str | None = field(default=None, compare=False)

    @property
    def is_provisional(self) -> bool:
        """True if it is not known to be on the disk."""
        return self.boot is not None

    @property
    def is_unknown(self) -> bool:
        """True if nothing tells here whether its files are whole: made by another boot, unread."""
        bare = any(checksum is None for _, checksum in self.files.values())
        return bare and self.is_provisional and self.boot != host.boot_id()

    def is_version_of(self, other: Committed) -> bool:
        """Return whether both are of one commit, of which the manifest may be written anew."""
        return (self.path, self.report, self.time) == (other.path, other.report, other.time)

    @property
    def is_pending(self) -> bool:
        """Return whether its validation has not ended."""
        return self.validation is not None and self.validation.status == PENDING

    def records(self) -> tuple[dict[str, object], ...]:
        """Return, encoded, the lowest rank's metrics, and those of the validation."""
        found = self.validation and self.validation.metrics
        reported = (self.metrics[min(self.metrics)],) if self.metrics else ()
        return (*reported, found) if found else reported

    def rank_zero_metrics(self) -> dict[str, object]:
        """Return the metrics of the lowest rank that reported any, and those of the validation."""
        return decode_all(self.records())

    def to_compare(self, *, checksums: bool) -> Committed:
        """Return it with sizes alone to compare its files with, if that is all there need be."""
        if checksums or self.is_provisional:
            return self
        return replace(self, files={name: (size, None) for name, (size, _) in self.files.items()})

    def positions_of_all(self) -> dict[int, Mapping[str, Any]]:
        """Return the positions of every rank; without any if none of them reads a dataset."""
        ranks = range(self.world_size if self.positions else 0)
        return {rank: self.positions.get(rank, {}) for rank in ranks}

    def damaged_size(self, sizes: Mapping[str, int] | None = None) -> str | None:
        """Return the name of a file that is not of the size it was committed with, or None.

        Args:
            sizes: The files that there are and their sizes, if that is known already.
        """
        if isinstance(self.path, RemotePath):
            sizes = self.path.sizes() if sizes is None else sizes
            return next((n for n, (size, _) in self.files.items() if sizes.get(n) != size), None)
        top = str(self.path)
        for name, (size, _) in self.files.items():
            try:
                now = os.stat(f"{top}/{name}")
            except OSError:
                return name
            if now.st_size != size or not stat.S_ISREG(now.st_mode):
                return name
        return None

    def first_damaged_file(self) -> str | None:
        """Read every file; return the name of the first that is not as committed, or None.

        Of a remote checkpoint only sizes are compared: its files are read when it is downloaded.
        """
        path, missing = self.path, self.damaged_size()
        if missing is not None or not self.files or isinstance(path, RemotePath):
            return missing
        names = list(self.files)
        sound = in_threads(lambda name: self.is_sound(name, path), names)
        return next((name for name, good in zip(names, sound, strict=True) if not good), None)

    def is_sound(self, name: str, directory: Path) -> bool:
        """Return whether a file is as it was committed, in this or another directory."""
        try:
            return matches(directory / name, self.files[name])
        except OSError:
            return False


def manifest_text(committed: Committed) -> bytes:
    """Return the manifest of a checkpoint, as its file holds it."""
    manifest = {
        "format": _FORMAT,
        "report": committed.report,
        "world_size": committed.world_size,
        "time": committed.time,
        "files": {name: list(known) for name, known in _checked(committed.files).items()},
        "ranks": {str(rank): record for rank, record in committed.metrics.items()},
    }
    if committed.validation is not None:
        manifest["validation"] = vars(committed.validation)
    if committed.boot is not None:
        manifest["boot"] = committed.boot
    if committed.positions:
        manifest["positions"] = {str(rank): of for rank, of in committed.positions.items()}
    return seal(json_bytes(manifest))


def write_manifest(directory: Path, committed: Committed, *, flush: bool = True) -> None:
    """Write the manifest of a checkpoint into a directory, whole, and see it onto the disk."""
    draft = directory / MANIFEST_DRAFT
    with open(draft, "wb", opener=unlinked) as file:
        file.write(manifest_text(committed))
        file.flush()
        if flush:
            os.fsync(file.fileno())
    draft.replace(directory / MANIFEST)


def read_manifest(path: Path) -> Committed | None:
    """Return what the manifest in a directory says, or None if there is none.

    Raises:
        StorageError: The manifest cannot be read, or is damaged.
    """
    try:
        with open(f"{path}/{MANIFEST}", "rb", buffering=0, opener=regular) as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError.of(error, f"{path / MANIFEST} cannot be read") from error
    return parse_manifest(path, text)


def parse_manifest(path: Place, text: bytes) -> Committed:
    """Return what a manifest says.

    Raises:
        StorageError: It is damaged.
    """
    try:
        manifest = unseal(text)
        committed = Committed(
            path=path,
            report=int(manifest["report"]),
            world_size=_ranks(manifest["world_size"]),
            files=_files(manifest["files"]),
            metrics={int(rank): record for rank, record in manifest["ranks"].items()},
            time=float(manifest["time"]),
            validation=Validation(**manifest["validation"]) if "validation" in manifest else None,
            positions={int(rank): of for rank, of in manifest.get("positions", {}).items()},
            boot=manifest.get("boot"),
        )
        committed.rank_zero_metrics()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StorageError(
            f"{path / MANIFEST} is damaged ({type(error).__name__}: {error}), so dray cannot "
            "check whether the checkpoint's files are sound; look at them yourself, or delete "
            "the directory"
        ) from error
    return committed


def _ranks(described: Any) -> int:
    count = int(described)
    if not 0 <= count <= _MOST_RANKS:
        raise ValueError(f"no run has {count} ranks")
    return count


def _files(described: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    odd = next((name for name in described if not is_file_name(name)), None)
    if odd is not None:
        raise ValueError(f"{odd!r} cannot be the name of a file in a directory")
    return {name: (size, digest) for name, (size, digest) in described.items()}


def _checked(files: Mapping[str, Fingerprint]) -> dict[str, Fingerprint]:
    """Return the files that stay as they were committed; users may change metadata."""
    return {
        name: known
        for name, known in files.items()
        if name != METADATA and not name.startswith(METADATA_DRAFT)
    }
