"""The way out of a container: connections of programs inside, carried to the worker's proxy in the server's own stream.

So a container needs no interface but loopback, and no path of the host, under any engine. Nothing waits here for a
slow side: a connection is read only as far as the other side has passed on what came before.
"""

# No contextlib: it is slow to import.
# ruff: noqa: SIM105
import _socket
import os
import select

from gpu_workers.sandboxes.container.inside.frames import Frames
from gpu_workers.sandboxes.container.inside.wire import (
    CHUNK,
    CLOSE,
    COUNT,
    CREDIT,
    DATA,
    END,
    NETWORK,
    OPEN,
    RELAY,
    WINDOW,
)

MAX_CONNECTIONS = 48  # the proxy itself refuses earlier, and says so


class Connection:
    """One program's connection: what it may still send, what waits to be written to it."""

    def __init__(self, number: int, socket: _socket.socket) -> None:
        self.number = number
        self.socket = socket
        self.credit = WINDOW
        self.waiting = bytearray()
        self.has_ended = False  # the program sends no more
        self.is_ending = False  # nor will the proxy


class Relay:
    """All connections of one call. They end with it, like its processes."""

    def __init__(self, frames: Frames, port: int) -> None:
        self.frames = frames
        self.count = 0
        self.by_number: dict = {}
        self.by_fd: dict = {}
        self.poll: select.poll = select.poll()
        self.listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self.listener.bind(("127.0.0.1", port))
        self.listener.listen(MAX_CONNECTIONS)
        self.listener.setblocking(False)

    def watch(self, poll: select.poll) -> None:
        """Before a call: have its poll look for connections and for what the worker says of them."""
        self.poll = poll
        poll.register(self.listener, select.POLLIN)
        poll.register(self.frames, select.POLLIN)

    def happened(self, fd: int, event: int) -> None:
        """The poll has seen something of the listener or of a connection."""
        if fd == self.listener.fileno():
            self._accept()
            return
        if event & select.POLLOUT and fd in self.by_fd:
            self._write(self.by_fd[fd])
        if event & ~select.POLLOUT and fd in self.by_fd:
            self._read(self.by_fd[fd])

    def heard(self, message: bytes) -> None:
        """The worker has said something of a connection; of one that is gone it says it in vain."""
        said, number = RELAY.unpack_from(message)
        connection = self.by_number.get(number)
        if connection is None:
            return
        if said == DATA:
            connection.waiting += message[RELAY.size :]
            self._write(connection)
        elif said == END:
            connection.is_ending = True
            self._write(connection)
        elif said == CREDIT:
            connection.credit += COUNT.unpack_from(message, RELAY.size)[0]
            self._look(connection)
        else:
            self._drop(connection)

    def end(self) -> None:
        """After a call, when its processes are gone: so are their connections, also those not yet accepted."""
        for connection in list(self.by_number.values()):
            self._drop(connection, tell=False)
        try:
            while True:
                os.close(self.listener._accept()[0])  # type: ignore[attr-defined]  # all that _socket has
        except OSError:
            pass

    def close(self) -> None:
        """In a forked child: no call may have the listener or a connection."""
        self.listener.close()
        for connection in self.by_number.values():
            connection.socket.close()

    def _say(self, said: int, number: int, data: bytes = b"") -> None:
        self.frames.send(NETWORK, RELAY.pack(said, number) + data)

    def _accept(self) -> None:
        try:
            socket = _socket.socket(fileno=self.listener._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            return  # it has gone again
        if len(self.by_number) >= MAX_CONNECTIONS:
            socket.close()
            return
        socket.setblocking(False)
        self.count += 1
        connection = Connection(self.count, socket)
        self.by_number[self.count] = self.by_fd[socket.fileno()] = connection
        self._say(OPEN, connection.number)
        self._look(connection)

    def _look(self, connection: Connection) -> None:
        """Have the poll look for what can happen to a connection now. A bare hang-up is no news: it would repeat."""
        events = select.POLLIN if connection.credit > 0 and not connection.has_ended else 0
        events |= select.POLLOUT if connection.waiting else 0
        if events:
            self.poll.register(connection.socket, events)
            return
        try:
            self.poll.unregister(connection.socket)
        except KeyError:
            pass

    def _read(self, connection: Connection) -> None:
        try:
            data = os.read(connection.socket.fileno(), max(1, min(CHUNK, connection.credit)))
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)
            return
        connection.credit -= len(data)
        connection.has_ended = not data
        self._say(DATA if data else END, connection.number, data)
        self._settle(connection)

    def _write(self, connection: Connection) -> None:
        try:
            if connection.waiting:
                written = os.write(connection.socket.fileno(), connection.waiting)
                del connection.waiting[:written]
                self._say(CREDIT, connection.number, COUNT.pack(written))
            if connection.is_ending and not connection.waiting:
                connection.socket.shutdown(_socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        self._settle(connection)

    def _settle(self, connection: Connection) -> None:
        if connection.has_ended and connection.is_ending and not connection.waiting:
            self._drop(connection)
        else:
            self._look(connection)

    def _drop(self, connection: Connection, *, tell: bool = True) -> None:
        del self.by_number[connection.number], self.by_fd[connection.socket.fileno()]
        try:
            self.poll.unregister(connection.socket)
        except KeyError:
            pass
        connection.socket.close()
        if tell:
            self._say(CLOSE, connection.number)
