"""Advice to use workers, given once if a slow function delays the reader while cores are idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

from dray import host, session
from dray.data.forms.blocks import Block
from dray.data.operations import Operation, UserFunction

_logger = logging.getLogger(__name__)

# A function is slow after this many seconds; starting a pool takes much less.
SLOW_S = 20.0


def advised(
    operation: Operation, function: UserFunction, blocks: Iterable[Block]
) -> Iterator[Block]:
    """Yield the results of an operation, and give advice if the reader mostly waits for it.

    Args:
        function: The user's function that the operation calls in this process.
    """
    began = time.monotonic()
    elsewhere = 0.0  # time for producing the blocks and for using the results

    def given() -> Iterator[Block]:
        nonlocal elsewhere
        asked = time.monotonic()
        for block in blocks:
            elsewhere += time.monotonic() - asked
            yield block
            asked = time.monotonic()
        elsewhere += time.monotonic() - asked

    silent = False
    for block in operation.apply(given()):
        now = time.monotonic()
        took = now - began - elsewhere
        if not silent and took > SLOW_S and took > elsewhere:
            silent = True
            _advise(function, took)
        yield block
        elsewhere += time.monotonic() - now


def _advise(function: UserFunction, took: float) -> None:
    started = session.is_initialized()
    cores = int(session.available_resources().get("CPU", 0)) if started else host.cpu_count()
    if cores > 1:
        _logger.warning(
            "%s has taken %.0f s in one process, while cores are idle: concurrency=%d runs it "
            "in that many processes",
            *(function.name, took, cores),
        )
