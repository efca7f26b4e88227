"""The network environment of workers: interfaces, ports, and slices of TPUs."""

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


def hold_port(address: str = "") -> socket.socket:
    """Find a free port for gRPC, and keep it from everybody else until the socket is closed.

    A program can give gRPC neither a listening socket nor, where others must know the port, port 0.
    But gRPC binds with SO_REUSEPORT, so it can listen at a port that this process has bound in the
    same way; without the option, or as another user, nobody can, and the kernel gives the port to
    no one. A socket that does not listen gets no connections. Source: `man 7 socket`, SO_REUSEPORT.

    Args:
        address: Address that gRPC is to listen at; "" is any.
    """
    held = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((address, 0))
    return held


def host_port(address: str, port: int) -> str:
    """Return an address and a port as URLs have them."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


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
