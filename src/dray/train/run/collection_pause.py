"""A pause of Python's garbage collector from `fit()` until workers run.

A collection of the oldest generation examines every object, which takes 0.2 s after the imports of
Lightning, and finds next to nothing. It is due when there is a quarter more objects. That may be
while `fit()` creates the few thousand objects that a start of workers needs, and the start would
wait for it.
"""

from __future__ import annotations

import gc


class CollectionPause:
    """A pause, which begins at once, unless the program itself has paused the collector."""

    def __init__(self) -> None:
        self._is_ours = gc.isenabled()
        if self._is_ours:
            gc.disable()

    def end(self) -> None:
        """End it, if that has not been done."""
        if self._is_ours:
            self._is_ours = False
            gc.enable()
