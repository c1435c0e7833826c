"""A bubblewrap backend, or a skip that says why this machine has none; a web server on this host's localhost."""

import http.server
import threading

import pytest

from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend


@pytest.fixture
async def backend():
    made = BubblewrapBackend()
    try:
        await made.probe()
    except WorkerError as error:
        pytest.skip(str(error))
    return made


class Site(http.server.BaseHTTPRequestHandler):
    seen: list[tuple[str, str, str, bytes]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        Site.seen.append((self.command, self.path, self.headers["Host"], body))
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    """Port of a web server on this host's localhost."""
    Site.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()
