"""A checkpoint that holds a PyTorch model in one file."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dray.compat.arguments import checked_arguments
from dray.errors import ConfigError, StorageError
from dray.train.checkpoint import Checkpoint

if TYPE_CHECKING:
    import torch

_OF_WRAPPERS = "module."


class TorchCheckpoint(Checkpoint):
    """A checkpoint with the file `model.pt`: a model's state, or the model itself.

    Example:
        >>> import shutil, torch
        >>> from dray.train.torch import TorchCheckpoint
        >>> model = torch.nn.Linear(2, 1)
        >>> checkpoint = TorchCheckpoint.from_state_dict(model.state_dict())
        >>> again = checkpoint.get_model(torch.nn.Linear(2, 1))
        >>> torch.equal(again.weight, model.weight)
        True
        >>> shutil.rmtree(checkpoint.path)
    """

    MODEL_FILENAME = "model.pt"

    @classmethod
    def from_state_dict(cls, state_dict: Mapping[str, object]) -> TorchCheckpoint:
        """Save a model's state in a new temporary directory, which you delete.

        Args:
            state_dict: Result of `model.state_dict()`, also of a wrapped model (DDP).
        """
        wrapped = all(name.startswith(_OF_WRAPPERS) for name in state_dict)
        prefix = _OF_WRAPPERS if wrapped else ""  # otherwise it is a submodule's name
        return cls._saved({name.removeprefix(prefix): of for name, of in state_dict.items()})

    @classmethod
    @checked_arguments("TorchCheckpoint.from_model")
    def from_model(cls, model: torch.nn.Module) -> TorchCheckpoint:
        """Save a whole model in a new temporary directory, which you delete.

        The file is a pickle: load it only if you trust its source. `from_state_dict` is safe.

        Args:
            model: The model.
        """
        return cls._saved(model)

    @classmethod
    def _saved(cls, content: object) -> TorchCheckpoint:
        import torch

        directory = tempfile.mkdtemp(prefix="dray-checkpoint-")
        torch.save(content, os.path.join(directory, cls.MODEL_FILENAME))
        return cls(directory)

    def get_model(self, model: torch.nn.Module | None = None) -> torch.nn.Module:
        """Load the model, on the CPU.

        Args:
            model: The model to load the state into. Without it the checkpoint must hold a whole
                model, which is loaded by pickle: do that only if you trust its source.

        Raises:
            ConfigError: The checkpoint holds a state and no model is given, or the other way round.
            StorageError: The checkpoint has no `model.pt`.
        """
        with self.as_directory() as directory:
            return self._load(os.path.join(directory, self.MODEL_FILENAME), model)

    def _load(self, path: str, model: torch.nn.Module | None) -> torch.nn.Module:
        import torch

        if not os.path.exists(path):
            raise StorageError(
                f"{self.path} has no {self.MODEL_FILENAME}; make the checkpoint with "
                "TorchCheckpoint.from_state_dict() or from_model()"
            )
        if model is None:
            found = torch.load(path, map_location="cpu", weights_only=False)
            if not isinstance(found, torch.nn.Module):
                raise ConfigError(f"{path} holds a model's state; name its model: get_model(Net())")
            return found
        try:
            model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except pickle.UnpicklingError as error:
            raise ConfigError(
                f"{path} holds more than a model's state, perhaps a whole model; if you trust its "
                "source, load it by get_model() without an argument"
            ) from error
        return model
