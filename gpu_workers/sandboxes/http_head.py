"""The head of a request to the proxy: read strictly, and written anew for the host that was checked. Pure."""

from urllib.parse import urlsplit

from gpu_workers.contracts.environment import Endpoint, parse_endpoint

# They speak of one connection, not of the request; the proxy closes each connection after its one request.
HOP_HEADERS = frozenset(
    {"connection", "proxy-connection", "keep-alive", "proxy-authorization", "te", "upgrade", "host", "expect"}
)


class Refusal(Exception):
    """An answer of the proxy's own."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_head(head: bytes) -> tuple[str, str, list[tuple[str, str]]]:
    """Method, target and headers of a request. Raises Refusal."""
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
        pairs = [line.split(":", 1) for line in lines]
        headers = [(name, value.strip()) for name, value in pairs]
    except ValueError as error:
        raise Refusal("400 Bad Request", "not an HTTP request") from error
    bad = any(not name or not name.isprintable() or " " in name or not value.isprintable() for name, value in headers)
    if bad or not method.isalpha() or version not in ("HTTP/1.1", "HTTP/1.0") or not target.isprintable():
        raise Refusal("400 Bad Request", "not an HTTP request")
    return method, target, headers


def find_endpoint(method: str, target: str) -> tuple[Endpoint, str]:
    """Where a request goes and the path it asks for there. Raises Refusal."""
    try:
        if method == "CONNECT":
            return parse_endpoint(target), ""
        parts = urlsplit(target)
        if parts.scheme != "http" or parts.username is not None or not parts.hostname:
            raise ValueError("a proxy needs http://host/path, or CONNECT for everything else")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        path = parts.path or "/"
        return parse_endpoint(f"{host}:{parts.port or 80}"), path + (f"?{parts.query}" if parts.query else "")
    except ValueError as error:
        raise Refusal("400 Bad Request", str(error)) from error


def request_head(method: str, path: str, endpoint: Endpoint, headers: list[tuple[str, str]]) -> bytes:
    """The request as the far side gets it: for the host that was checked, and the only one of its connection."""
    host = str(endpoint).removesuffix(":80")
    kept = [(name, value) for name, value in headers if name.lower() not in HOP_HEADERS]
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{n}: {v}" for n, v in kept), "Connection: close"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def body_length(headers: list[tuple[str, str]]) -> int:
    """Bytes of a request's body. Raises Refusal where they cannot be told: a second request could hide behind them."""
    lengths = {value for name, value in headers if name.lower() == "content-length"}
    if any(name.lower() == "transfer-encoding" for name, _ in headers):
        raise Refusal("411 Length Required", "send a Content-Length, or use CONNECT")
    if len(lengths) > 1 or any(not (text.isascii() and text.isdigit()) for text in lengths):
        raise Refusal("400 Bad Request", "Content-Length is not one number")
    return int(lengths.pop()) if lengths else 0
