"""Web servers on this host's localhost."""

import contextlib
import http.server
import threading

import pytest


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
def serve():
    """Starts web servers of a handler class and returns their ports; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(handler: type[http.server.BaseHTTPRequestHandler]) -> int:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return server.server_address[1]

        yield start


@pytest.fixture
def site(serve):
    Site.seen = []
    return serve(Site)
