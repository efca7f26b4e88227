"""What holds resources of a session, so that a test sees how others wait for them."""

from __future__ import annotations

from typing import Any

import dray


@dray.remote(num_cpus=0)
class Holder:
    """Holds what it is given."""

    def ready(self) -> bool:
        return True


def hold(**resources: Any) -> Any:
    """Returns an actor that holds resources, until it is killed."""
    holder = Holder.options(**resources).remote()
    assert dray.get(holder.ready.remote())
    return holder
