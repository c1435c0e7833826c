"""Connections to our servers wait for no acknowledgement between two writes."""

import socket

from gpu_workers.listening import listen


def test_a_connection_sends_at_once() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
