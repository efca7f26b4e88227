"""Ids with the methods that programs for Ray expect."""

from __future__ import annotations


class Id(str):
    """An id: a str that also has the method `hex()` of Ray's ids."""

    __slots__ = ()

    def hex(self) -> str:
        """Return the id as text."""
        return str(self)
