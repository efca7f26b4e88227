"""Ids as programs that were written for Ray expect them."""

from __future__ import annotations


class Id(str):
    """An id: text that also has the `hex()` of Ray's ids."""

    __slots__ = ()

    def hex(self) -> str:
        """Return the id as text."""
        return str(self)
