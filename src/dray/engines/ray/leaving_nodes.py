"""Nodes that Ray drains because they are about to be taken away; Ray sends no event for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import ray

_EVERY_S = 5.0


def leaving() -> dict[str, int]:
    """Return node id -> when it goes, in milliseconds since the epoch; 0 if nobody has said it."""
    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return found


def watch(
    connection: Callable[[], AbstractContextManager[bool]], tell: Callable[[], object]
) -> Callable[[], None]:
    """Call something, in a thread of its own, as Ray begins to drain a node.

    Args:
        connection: Holds up the end of the connection to Ray, and tells whether it is there.

    Returns:
        What ends it when it is called.
    """
    ended = threading.Event()

    def look() -> None:
        known: set[str] = set()
        while not ended.wait(_EVERY_S):
            with connection() as is_there:
                if not is_there:
                    return
                try:
                    found = {*leaving()}
                except Exception:  # noqa: BLE001 (Ray raises what it likes: it is asked again)
                    continue
            if not found <= known:
                tell()
            known = found

    threading.Thread(target=look, name="dray-leaving", daemon=True).start()
    return ended.set
