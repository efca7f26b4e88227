"""Sockets that workers leave for the driver: each goes to the client that says so."""

from __future__ import annotations

import socket

from dray.engines.process.attach_socket import AttachListener, leave


def test_who_has_connected_and_said_nothing_holds_up_nobody() -> None:
    listener = AttachListener()
    address = listener.address()
    mine, theirs = socket.socketpair()
    with mine, theirs, socket.socket(socket.AF_UNIX) as slow:
        slow.connect(address)
        leave(address, 7, theirs)
        taken = listener.take(7)
        assert taken is not None
        with taken:
            taken.sendall(b"!")
        assert mine.recv(1) == b"!"
        socket.send_fds(slow, [(8).to_bytes(8, "big")], [theirs.fileno()])
        late = listener.take(8)
        assert late is not None
        late.close()
        assert listener.take(8) is None
    listener.close()
