"""A store of PyTorch at which ranks meet, on a socket that dray has bound."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def open_store(address: str, timeout: timedelta) -> torch.distributed.TCPStore:
    """Open a store on a port that the kernel chooses.

    The listening socket is made here and handed over, so that no port is picked and then lost to
    somebody else, and so that it listens on this address alone.
    """
    from torch.distributed import TCPStore

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, backlog=1024) as listener:
        port = listener.getsockname()[1]
        fd = listener.detach()
    return TCPStore(address, port, None, True, timeout, wait_for_workers=False, master_listen_fd=fd)
