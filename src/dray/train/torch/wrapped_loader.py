"""Data loaders that wrap another data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class WrappedLoader:
    """A data loader that wraps another one; `isinstance` and all other attributes are the latter's.

    Args:
        own: Attributes of the wrapper itself.
    """

    _loader: DataLoader[Any]

    def __init__(self, loader: DataLoader[Any], **own: object) -> None:
        vars(self).update(own, _loader=loader)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The wrapped loader's class, for `isinstance`; `type` returns the wrapper's own class."""
        return self._loader.__class__

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped loader, but no special method such as `__reduce__`."""
        if name == "_loader" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._loader, name, value)
