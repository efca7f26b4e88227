"""Checkpoints that hold a Keras model."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, ClassVar

from dray.checks import require
from dray.errors import StorageError
from dray.train.checkpoint import Checkpoint

require("tensorflow", "dray[tensorflow]")

MODEL = "model.keras"


class TensorflowCheckpoint(Checkpoint):
    """A checkpoint that holds a Keras model; its metadata contain the name of the model's file.

    Example:
        >>> import shutil
        >>> import tensorflow as tf
        >>> from dray.train.tensorflow import TensorflowCheckpoint
        >>> model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        >>> checkpoint = TensorflowCheckpoint.from_model(model)
        >>> checkpoint.get_model().count_params()
        2
        >>> shutil.rmtree(checkpoint.path)
    """

    MODEL_FILENAME_KEY: ClassVar[str] = "_model_filename"

    @classmethod
    def from_model(cls, model: Any) -> TensorflowCheckpoint:
        """Save a model in a new temporary directory, which you delete."""
        directory = tempfile.mkdtemp(prefix="dray-checkpoint-")
        model.save(os.path.join(directory, MODEL))
        return cls._named(directory, MODEL)

    @classmethod
    def from_h5(cls, file_path: str) -> TensorflowCheckpoint:
        """Copy a model's file in the HDF5 format to a new temporary directory, which you delete."""
        directory = tempfile.mkdtemp(prefix="dray-checkpoint-")
        with StorageError.instead(f"{file_path} cannot be copied"):
            shutil.copy(file_path, directory)
        return cls._named(directory, os.path.basename(file_path))

    @classmethod
    def from_saved_model(cls, dir_path: str) -> TensorflowCheckpoint:
        """Copy a SavedModel directory to a new temporary directory, which you delete."""
        directory = tempfile.mkdtemp(prefix="dray-checkpoint-")
        with StorageError.instead(f"{dir_path} cannot be copied"):
            shutil.copytree(dir_path, directory, dirs_exist_ok=True)
        return cls._named(directory, ".")

    @classmethod
    def _named(cls, directory: str, name: str) -> TensorflowCheckpoint:
        checkpoint = cls(directory)
        checkpoint.set_metadata({cls.MODEL_FILENAME_KEY: name})
        return checkpoint

    def get_model(self) -> Any:
        """Load the model, with its optimizer.

        Models in the formats HDF5 and SavedModel can contain code, which loading runs: load them
        only if you trust their source.

        Raises:
            StorageError: The checkpoint has no model.
        """
        name = self.get_metadata().get(self.MODEL_FILENAME_KEY, MODEL)
        with self.as_directory() as directory:
            there = os.listdir(directory)
            if name not in (".", *there):
                raise StorageError(f"{self.path} has no {name}; it holds {there}")
            import tensorflow as tf

            return tf.keras.models.load_model(os.path.join(directory, name))
