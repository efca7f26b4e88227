"""A pause of Python's garbage collector from `fit()` until workers run.

A collection of the oldest generation looks at every object that there is, 0.2 s after the imports
of Lightning, and finds next to nothing. It is due when there is a quarter more of them: with bad
luck amid the few thousand that starting workers makes, which wait for it then.
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
