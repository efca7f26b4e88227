"""Advice to use workers: given once to whom a slow function keeps waiting while cores are idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

from dray import host, session
from dray.data.forms.blocks import Block
from dray.data.operations import Operation, UserFunction

_logger = logging.getLogger(__name__)

# Seconds of a function's own before it is called slow: long beside the start of any pool.
SLOW_S = 20.0


def advised(
    operation: Operation, function: UserFunction, blocks: Iterable[Block]
) -> Iterator[Block]:
    """Yield what an operation makes of blocks; tell if its function is what the reader waits for.

    Args:
        function: The function of the user that it calls in this process.
    """
    began = time.monotonic()
    elsewhere = 0.0  # seconds in which the blocks were made, or the results used

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
            "%s has taken %.0f s in one process, while cores are idle: concurrency=%d has it run "
            "in as many",
            *(function.name, took, cores),
        )
