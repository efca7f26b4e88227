"""Data loaders around others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class WrappedLoader:
    """A data loader around another one; what it does not change is that one's, its kind too.

    Args:
        own: Attributes of the wrapper itself.
    """

    _loader: DataLoader[Any]

    def __init__(self, loader: DataLoader[Any], **own: object) -> None:
        vars(self).update(own, _loader=loader)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The loader's class, so that `isinstance` says yes to it; `type` says what this is."""
        return self._loader.__class__

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Return the loader's own attribute, but not how it is copied or pickled."""
        if name == "_loader" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)
