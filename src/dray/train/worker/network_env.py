"""The network environment of workers: variables for interfaces, and for slices of TPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from dray import host
from dray.engines.rpc.actor_host import set_variables

# The variables that tell libtpu of several slices.
_MEGASCALE = (
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
    "MEGASCALE_PORT",
)


def choose_interface(address: str) -> None:
    """Have collectives use the interface of this node's address, unless the user has chosen one."""
    interface = host.interface_of(address)
    if interface is None and address == "127.0.0.1":
        interface = next((n for _, n in socket.if_nameindex() if n in ("lo", "lo0")), None)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        if address != "127.0.0.1":
            # NCCL takes a bare name for the beginning of one: eth1 would be eth10 too.
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def tell_slices(slices: Sequence[str], rank: int, address: str) -> None:
    """Describe several TPU slices to libtpu; of one it must not hear, or it waits for others.

    A node's own environment may describe several, though the run is on one of them. JAX and
    PyTorch/XLA both reach TPUs through libtpu.

    Args:
        slices: The slice of every rank.
        rank: This worker's.
        address: Of rank 0.
    """
    names = list(dict.fromkeys(slices))
    if len(names) == 1:
        set_variables(dict.fromkeys(_MEGASCALE))
        return
    os.environ.update(
        MEGASCALE_COORDINATOR_ADDRESS=address,
        MEGASCALE_NUM_SLICES=str(len(names)),
        MEGASCALE_SLICE_ID=str(names.index(slices[rank])),
    )
    os.environ.setdefault("MEGASCALE_PORT", "8081")
