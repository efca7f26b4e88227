"""What tasks and actors can know of their accelerators."""

from __future__ import annotations

import os
from typing import Any

import dray


@dray.remote(num_cpus=0)
def look(*names: str) -> Any:
    """Return what a task can know of its accelerators."""
    return (
        {k: v for k, v in dray.get_runtime_context().get_accelerator_ids().items() if v},
        {name: os.environ.get(name) for name in names},
        os.getpid(),
    )


@dray.remote(num_cpus=0)
class Looker:
    """The same in an actor."""

    def look(self, *names: str) -> Any:
        return look._function(*names)
