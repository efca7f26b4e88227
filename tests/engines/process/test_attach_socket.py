"""Sockets that workers leave for the driver: each goes to the client that says so."""

from __future__ import annotations

import socket

from dray.engines.process.attach_socket import AttachSocket, leave


def test_each_client_gets_its_own_whatever_others_have_left() -> None:
    attaching = AttachSocket()
    mine, theirs = socket.socketpair()
    with mine, theirs:
        leave(attaching.far, 8, theirs)  # by a worker that was killed before it could say so
        leave(attaching.far, 7, theirs)
        assert attaching.take(9) is None
        taken = attaching.take(7)
        assert taken is not None
        with taken:
            taken.sendall(b"!")
        assert mine.recv(1) == b"!"
        assert attaching.take(7) is None
        attaching.close()
        theirs.close()
        assert mine.recv(1) == b""  # nothing keeps the other one
