"""Ctrl-C in this process, while a run trains."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from dray.train import UserCallback


class CtrlC(UserCallback):
    """Interrupts this process once, as soon as all ranks have reported."""

    def __init__(self) -> None:
        self.done = False

    def after_report(self, *_: Any, **__: Any) -> None:
        if not self.done:
            self.done = True
            os.kill(os.getpid(), signal.SIGINT)


def ends_run(fit: Any) -> None:
    """Interrupt a run that would train for hours; fail if it does not end as it should.

    Args:
        fit: Starts it, with callbacks of the run.
    """
    with pytest.raises(KeyboardInterrupt, match="the run was stopped"):
        fit([CtrlC()])
