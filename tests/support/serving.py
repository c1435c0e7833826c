"""The real ASGI application, served by uvicorn from a thread of the test process; it can go away and come back."""

import socket
import threading
import time


class ServedApplication:
    """`url` stays the same over `stop` and `start`. Use it as a context manager."""

    def __init__(self) -> None:
        self.port = 0
        self._server = self._thread = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        import uvicorn

        from ratchet.asgi import application

        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(application, lifespan="off", log_level="error", ws="websockets-sansio")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self._server.started, "uvicorn did not start"

    def stop(self) -> None:
        """Closes the port and every connection."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
        for listener in self._server.servers:
            listener.close()

    def __enter__(self) -> "ServedApplication":
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()
