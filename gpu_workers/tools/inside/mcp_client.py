"""Speaks with an MCP server over its standard streams, in the process forked for one call; standard library only.

Model Context Protocol, revision 2026-07-28 (stateless requests with an envelope) and the revisions with an `initialize`
handshake before it. Messages are JSON-RPC 2.0, one a line. The text returned is one line of JSON, then the result.
"""

from __future__ import annotations

import _socket
import json

TYPE_CHECKING = False  # the module typing would take longer to import than the call
if TYPE_CHECKING:
    from typing import Any

MODERN = ("2026-07-28",)
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
META = "io.modelcontextprotocol/"
CLIENT = {"name": "ratchet", "version": "1"}
PROBE_SECONDS = 3.0  # a server of an older revision may not answer a method it does not know
MAX_LINE = 8 * 2**20
MAX_STRAY_LINES = 1000  # of one call: text on stdout that is no message
MAX_PAGES = 50
NOT_FOUND, UNSUPPORTED_VERSION = -32601, -32022


class ServerError(Exception):
    """What went wrong between client and server; told to whoever called."""


class RefusedError(ServerError):
    """A JSON-RPC error of the server."""

    def __init__(self, error: Any) -> None:
        self.code = error.get("code") if isinstance(error, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        self.data = error.get("data") if isinstance(error, dict) else None
        super().__init__("error " + str(self.code) + ": " + str(message)[:500])


class Connection:
    """One call's end of the streams. Ids go on from call to call, so that a late answer is told apart."""

    def __init__(self, descriptor: int, next_id: int, protocol: str) -> None:
        self.socket = _socket.socket(fileno=descriptor)
        self.socket.setblocking(True)  # the last call may have ended while it waited with a time-out
        self.next_id = next_id
        self.protocol = protocol

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result. Raises ServerError."""
        number = self.next_id
        self.next_id += 1
        if self.protocol in MODERN:
            params = {**params, "_meta": self._envelope()}
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        stray = 0
        while True:
            messages = self._read()
            stray += not messages
            if stray > MAX_STRAY_LINES:
                raise ServerError("the server writes text to its standard output that is no JSON-RPC message")
            for message in messages:
                if "method" in message:
                    self._answer(message)
                elif message.get("id") == number and "error" in message:
                    raise RefusedError(message["error"])
                elif message.get("id") == number:
                    if not isinstance(message.get("result"), dict):
                        raise ServerError("the server's answer to " + method + " has no result")
                    return message["result"]

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise ServerError("the server has ended") from None

    def _envelope(self) -> dict[str, Any]:
        return {META + "protocolVersion": self.protocol, META + "clientInfo": CLIENT, META + "clientCapabilities": {}}

    def _answer(self, message: dict[str, Any]) -> None:
        """Requests of the server: a ping is answered, everything else is not offered."""
        if "id" not in message:
            return
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "ping":
            self.send({**answer, "result": {}})
        else:
            error = {"code": NOT_FOUND, "message": "this client has no " + str(message["method"])}
            self.send({**answer, "error": error})

    def _read(self) -> list[dict[str, Any]]:
        """Messages of the next line; none where it holds something else."""
        try:
            value = json.loads(self._line())
        except (ValueError, RecursionError):
            return []
        items = value if isinstance(value, list) else [value]
        return [item for item in items if isinstance(item, dict) and item.get("jsonrpc") == "2.0"]

    def _line(self) -> bytes:
        """One line and not a byte more: the next call reads on from there."""
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                seen = self.socket.recv(65536, _socket.MSG_PEEK)
            except ConnectionError:
                seen = b""
            if not seen:
                raise ServerError("the server has ended")
            end = seen.find(b"\n") + 1
            part = self.socket.recv(end or len(seen))
            size += len(part)
            if size > MAX_LINE:
                raise ServerError("the server sent a message of more than " + str(MAX_LINE) + " bytes")
            parts.append(part)
            if end and part.endswith(b"\n"):
                return b"".join(parts)


def run(request: dict[str, Any]) -> str:
    """One operation: open | list | call."""
    head: dict[str, Any] = {}
    text = ""
    connection = None
    try:
        if "descriptor" not in request:
            raise ServerError("the server is not running")
        connection = Connection(request["descriptor"], request["next_id"], request["protocol"])
        if request["unanswered"]:
            # Whatever was being written when the last call ran out of time ends here.
            connection.socket.sendall(b"\n")
            connection.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
                             "params": {"requestId": request["unanswered"], "reason": "timed out"}})  # fmt: skip
        if request["operation"] == "call":
            text = _call(connection, request, head)
        else:
            _open(connection)
            tools = _list(connection)
            if request["operation"] == "list":
                head["tools"] = tools
            else:
                head["names"], head["problem"] = _compare(tools, request["declared"])
    except (ServerError, OSError) as error:
        head["error"] = str(error)
    if connection is not None:
        head["next_id"], head["protocol"] = connection.next_id, connection.protocol
        connection.socket.detach()
    return json.dumps(head) + "\n" + text


def _open(connection: Connection) -> None:
    """Settle the revision: the wanted one, else the newest that both speak."""
    wanted = connection.protocol
    if wanted in HANDSHAKE:
        _handshake(connection, wanted)
        return
    connection.protocol = wanted or MODERN[0]
    try:
        connection.socket.settimeout(PROBE_SECONDS)
        found = connection.request("server/discover", {}).get("supportedVersions")
        if isinstance(found, list) and connection.protocol in found:
            return
    except TimeoutError:
        pass
    except RefusedError as error:
        supported = error.data.get("supported") if isinstance(error.data, dict) else None
        if error.code == UNSUPPORTED_VERSION and not set(supported or ()) & set(HANDSHAKE):
            raise ServerError("no common revision; the server speaks " + str(supported)) from None
    finally:
        connection.socket.settimeout(None)
    if wanted:
        raise ServerError("the server does not speak revision " + wanted + " of the protocol any more")
    _handshake(connection, HANDSHAKE[0])


def _handshake(connection: Connection, version: str) -> None:
    connection.protocol = ""
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
    answered = connection.request("initialize", hello).get("protocolVersion")
    if answered not in HANDSHAKE:
        raise ServerError("the server speaks revision " + str(answered) + ", which is not known here")
    connection.protocol = answered
    connection.send({"jsonrpc": "2.0", "method": "notifications/initialized"})


def _list(connection: Connection) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    cursor: Any = None
    for _ in range(MAX_PAGES):
        page = connection.request("tools/list", {"cursor": cursor} if cursor else {})
        found = page.get("tools")
        if not isinstance(found, list):
            raise ServerError("the server's list of tools is none")
        tools += [tool for tool in found if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
        cursor = page.get("nextCursor")
        if not cursor:
            return tools
    raise ServerError("the server's list of tools has more than " + str(MAX_PAGES) + " pages")


def _compare(tools: list[dict[str, Any]], declared: dict[str, Any]) -> tuple[dict[str, str], str]:
    """The server's own names of the declared tools, and what differs from their declaration."""
    names: dict[str, str] = {}
    offered = {_plain(tool["name"]): tool for tool in tools}
    for name, schema in declared.items():
        tool = offered.get(name)
        if tool is None:
            return names, "it offers no tool " + name + ", only " + ", ".join(sorted(offered))[:300]
        if _canonical(tool.get("inputSchema")) != _canonical(schema):
            return names, "its tool " + name + " takes other arguments than the task declares"
        names[name] = tool["name"]
    return names, ""


def _plain(name: str) -> str:
    """A name that can be written as a function call."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _call(connection: Connection, request: dict[str, Any], head: dict[str, Any]) -> str:
    result = connection.request("tools/call", {"name": request["name"], "arguments": request["arguments"]})
    if result.get("resultType") not in (None, "complete"):
        raise ServerError("the tool asks for further input (" + str(result["resultType"]) + "), which is not offered")
    head["is_error"] = result.get("isError") is True
    content = result.get("content")
    items = content if isinstance(content, list) else []
    parts = [_text(item) for item in items if isinstance(item, dict)]
    if not parts and "structuredContent" in result:
        parts = [json.dumps(result["structuredContent"], ensure_ascii=False)]
    return "\n".join(parts)


def _text(item: dict[str, Any]) -> str:
    """What the policy reads of one item: text as it is, everything else by name."""
    kind = item.get("type")
    if kind == "text":
        return str(item.get("text", ""))
    if kind == "resource" and isinstance(item.get("resource"), dict) and "text" in item["resource"]:
        return str(item["resource"]["text"])
    if kind == "resource_link":
        return "[link to " + str(item.get("uri")) + "]"
    return "[" + str(kind) + " of type " + str(item.get("mimeType", "unknown")) + ", not shown]"
