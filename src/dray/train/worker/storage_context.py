"""The storage context of a run, for train functions that write checkpoints in place."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

from dray.errors import ConfigError
from dray.train.checkpoint import Checkpoint
from dray.train.storage.checkpoint_files import list_files
from dray.train.storage.filesystem import arrow_filesystem, place_at
from dray.train.storage.names import check_checkpoint_name
from dray.train.storage.place import RemotePath, path_within
from dray.train.storage.remote.transfer import upload


class StorageContext:
    """The place of a run.

    Args:
        storage_path: The directory of all runs.
        experiment_dir_name: The run's name.
        storage_filesystem: Its file system, of pyarrow or fsspec; default: the one that the path
            names.

    Attributes:
        storage_fs_path: The directory of all runs.
        experiment_dir_name: The run's name.
    """

    def __init__(
        self,
        storage_path: str | os.PathLike[str],
        experiment_dir_name: str,
        storage_filesystem: Any = None,
    ) -> None:
        self._place = place_at(storage_path, storage_filesystem, "storage_path")
        self.storage_fs_path = path_within(self._place)
        self.experiment_dir_name = experiment_dir_name
        self._filesystem = storage_filesystem

    @property
    def storage_filesystem(self) -> Any:
        """The file system of the paths.

        Raises:
            MissingDependencyError: None was given, and pyarrow is not installed.
        """
        return arrow_filesystem(self._place) if self._filesystem is None else self._filesystem

    @property
    def is_local(self) -> bool:
        """True if programs can write to the paths as they write to any file."""
        return not isinstance(self._place, RemotePath)

    @property
    def experiment_fs_path(self) -> str:
        """The run's directory."""
        return os.path.join(self.storage_fs_path, self.experiment_dir_name)

    def build_checkpoint_path_from_name(self, checkpoint_name: str) -> str:
        """Return where in the run's directory a checkpoint of a name lies.

        Raises:
            ConfigError: A checkpoint cannot have that name.
        """
        check_checkpoint_name(checkpoint_name)
        return os.path.join(self.experiment_fs_path, checkpoint_name)

    def extract_checkpoint_dir_name_from_path(self, checkpoint_path: str) -> str:
        """Return the name of a checkpoint in the run's directory.

        Raises:
            ConfigError: The path is outside of that directory.
        """
        path = PurePosixPath(checkpoint_path)
        if not path.is_relative_to(self.experiment_fs_path):
            raise ConfigError(
                f"{checkpoint_path} is not in the run's directory {self.experiment_fs_path}"
            )
        return str(path.relative_to(self.experiment_fs_path))

    def persist_current_checkpoint(
        self, checkpoint: Checkpoint, checkpoint_dir_name: str
    ) -> Checkpoint:
        """Copy a checkpoint's files into the run's directory.

        It counts as a checkpoint of the run once it is reported:
        `report(metrics, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)`.

        Args:
            checkpoint: Checkpoint with the files to copy.
            checkpoint_dir_name: Its name there.

        Returns:
            The checkpoint with the copies.

        Raises:
            ConfigError: A checkpoint cannot have that name.
            StorageError: The files cannot be copied.
        """
        target = self.build_checkpoint_path_from_name(checkpoint_dir_name)
        place = self._place / self.experiment_dir_name / checkpoint_dir_name
        if isinstance(place, RemotePath):
            with checkpoint.as_directory() as path:
                upload(path, place, list_files(path))
        else:
            checkpoint.to_directory(target)
        return Checkpoint.at(place)
