"""What holds resources of a session, and what sees that others wait for them."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

import dray
from tests.support.gates import Gate


@dray.remote(num_cpus=0)
class Holder:
    """Holds what it is given."""

    def ready(self) -> bool:
        return True


def hold(**resources: Any) -> Any:
    """Return an actor that holds resources, until it is killed."""
    holder = Holder.options(**resources).remote()
    assert dray.get(holder.ready.remote())
    return holder


@dray.remote
def held(gate: Gate) -> str:
    """Wait at a gate."""
    gate.pass_through()
    return "let go"


class Watch(io.StringIO):
    """Takes the place of standard error, in which runs say that they wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._written = threading.Condition()
        monkeypatch.setenv("DRAY_PROGRESS", "1")
        monkeypatch.setattr(sys, "stderr", self)

    def write(self, text: str) -> int:
        with self._written:
            self._written.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._written:
            assert self._written.wait_for(lambda: text in self.getvalue(), 60), self.getvalue()
