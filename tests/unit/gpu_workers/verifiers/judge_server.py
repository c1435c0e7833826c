"""A real HTTP server that speaks the chat completions of OpenAI's API; its model is a function of the test."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Model = Callable[[dict[str, Any]], Any]


class Judge:
    """What the server was asked, and how it answers: text, (status, text), bytes, or seconds to be silent."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""


@contextlib.contextmanager
def judge_server(model: Model) -> Iterator[Judge]:
    judge = Judge(model)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            judge.requests.append({"path": self.path, **body})
            judge.headers.append(dict(self.headers))
            said = judge.model(body)
            if isinstance(said, float):
                time.sleep(said)
                said = ""
            status, content = said if isinstance(said, tuple) else (200, said)
            if isinstance(content, str):
                message = {"role": "assistant", "content": content}
                choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
                content = json.dumps({"object": "chat.completion", "model": body["model"], "choices": choices}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a client that has had enough
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    judge.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def mark_of(body: dict[str, Any]) -> str:
    """The mark that the instructions ask for."""
    return body["messages"][0]["content"].rpartition('"mark": "')[2].partition('"')[0]


def verdict(body: dict[str, Any], score: Any, reason: str = "because") -> str:
    return json.dumps({"mark": mark_of(body), "score": score, "reason": reason})
