"""A network that fails on demand, in front of a real server: answers that are lost, refusals of a balancer."""

import socket
import threading
from collections import deque

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
LOST = "the server answers, the client never hears it"


class FaultyProxy:
    """One request a connection. Each takes the next of `faults`: None passes it on, LOST cuts the answer, bytes are
    answered instead of asking the server. When there are no more faults everything passes."""

    def __init__(self, port: int, faults: list[object]) -> None:
        self.target = ("127.0.0.1", port)
        self.faults = deque(faults)
        self.num_requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.num_requests += 1
            with client:
                self._handle(client, self.faults.popleft() if self.faults else None)

    def _handle(self, client: socket.socket, fault: object) -> None:
        request = _read_request(client)
        if isinstance(fault, bytes):
            client.sendall(fault)
            return
        with socket.create_connection(self.target) as server:
            server.sendall(request)
            answer = b""
            while piece := server.recv(65536):
                answer += piece
        if fault != LOST:
            client.sendall(answer)


def _read_request(client: socket.socket) -> bytes:
    """The whole request, told to be the only one on its connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += client.recv(65536)
    return b"\r\n".join([*lines, b"Connection: close", b"", body])
