"""What tasks and calls print: that it is all shown, and under whose name."""

from __future__ import annotations

import sys

import pytest

import dray
from tests.support.gates import until

pytestmark = pytest.mark.usefixtures("process_engine")


def test_raw_output_of_tasks_is_there_at_their_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    @dray.remote
    class Writer:
        def write(self, text: bytes) -> None:
            sys.stdout.buffer.write(text)

        def write_and_fail(self, text: bytes) -> None:
            sys.stdout.buffer.write(text)
            raise KeyError(text)

    @dray.remote
    def write(text: bytes) -> None:
        sys.stdout.buffer.write(text)

    writer = Writer.remote()
    dray.get([write.remote(b"of a task\n"), writer.write.remote(b"of a call\n")])
    with pytest.raises(KeyError):
        dray.get(writer.write_and_fail.remote(b"of a failure\n"))
    said: list[str] = []

    def heard() -> bool:
        said.append(capfd.readouterr().out)
        lines = "".join(said)
        return all(f"of a {what}" in lines for what in ("task", "call", "failure"))

    until(heard)
