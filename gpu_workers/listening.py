"""Where the servers of this package listen."""

import socket


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket whose connections send at once. Raises OSError.

    asyncio turns Nagle's algorithm off only for sockets made with TCP's protocol number, which `create_server` does not
    give: an answer in two writes would wait 40 ms for the acknowledgement of its first. Connections inherit the option.
    """
    listener = socket.create_server((host, port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
