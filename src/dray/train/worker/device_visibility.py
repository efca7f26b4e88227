"""Visibility of accelerators: if the framework wants it, all devices of the run on the node.

Libraries that take the device of the local rank then find their own, and devices can communicate
directly.
"""

from __future__ import annotations

from collections.abc import Mapping

from dray.accelerators import family_named
from dray.accelerators.vendors.nvidia import is_slice
from dray.errors import ConfigError
from dray.train.worker.run_messages import Assignment


def shared_variables(assignment: Assignment, environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return what to change in the environment, so that a worker sees its neighbours' devices.

    Args:
        environ: Its environment, in which the engine has shown it its own devices.
    """
    if not assignment.shares_devices or assignment.family is None:
        return {}
    family = family_named(assignment.family)
    among = assignment.node_devices[family.resource]
    if not family.shared or family.visible(environ) is None or any(map(is_slice, among)):
        return {}
    return family.show(among, environ, 0)


def device_indices(assignment: Assignment, environ: Mapping[str, str]) -> list[int]:
    """Return the places of a worker's devices among those that it sees."""
    assert assignment.family is not None
    family = family_named(assignment.family)
    own, among = (d[family.resource] for d in (assignment.devices, assignment.node_devices))
    shown = family.visible(environ)
    if shown is None and all(device.isdecimal() for device in own):
        return sorted(int(device) for device in own)
    shown = [] if shown is None else shown
    if set(among) <= set(shown) or set(own) == set(shown):
        return sorted(shown.index(device) for device in own)
    if len(among) <= len(shown):  # a list of the user's, which names others
        return sorted(among.index(device) for device in own)
    name = family.variable(environ)
    raise ConfigError(
        f"rank {assignment.rank} has {family.resource} {', '.join(own)}, but "
        f"{name}={environ.get(name or '', '')!r} does not show it; unset the variable, or name the "
        "devices that the run may use"
    )
