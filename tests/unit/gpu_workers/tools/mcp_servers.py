"""MCP servers by hand, standard library only: one that does everything right, and changes that make it misbehave."""

SERVER = """
import json
import sys

MODERN, KNOWN = "2026-07-28", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
TEXT = {"type": "string"}
TOOLS = [
    {"name": "remember", "description": "Keeps a note.", "inputSchema": {
        "type": "object", "properties": {"key": TEXT, "note": TEXT}, "required": ["key", "note"],
        "additionalProperties": False}},
    {"name": "recall-all", "description": "All notes.", "inputSchema": {"type": "object", "properties": {}}},
]
notes = {}


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def call(name, arguments):
    if name == "remember":
        if arguments["key"] == "forbidden":
            return text("that key is not allowed", isError=True)
        notes[arguments["key"]] = arguments["note"]
        return text(f"{len(notes)} notes")
    if name == "recall-all":
        return text(json.dumps(notes), structuredContent=notes)
    raise KeyError(name)


def handle(method, params):
    if method == "initialize":
        wanted = params["protocolVersion"]
        version = wanted if wanted in KNOWN else KNOWN[0]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}
    if method == "tools/list":
        page = int(params.get("cursor") or 0)
        more = {"nextCursor": str(page + 1)} if page + 1 < len(TOOLS) else {}
        return {"tools": TOOLS[page : page + 1], **more}
    if method == "tools/call":
        return call(params["name"], params["arguments"])
    raise LookupError(method)


def serve():
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            send({"id": None, "error": {"code": -32700, "message": "parse error"}})
            continue
        if "id" not in message:
            continue
        try:
            send({"id": message["id"], "result": handle(message["method"], message.get("params") or {})})
        except LookupError as error:
            send({"id": message["id"], "error": {"code": -32601, "message": f"no {error}"}})


if __name__ == "__main__":
    serve()
"""

# Speaks only the stateless revision: every request carries its envelope, there is no handshake.
MODERN_SERVER = SERVER.replace(
    """def handle(method, params):
""",
    """def handle(method, params):
    meta = params.get("_meta") or {}
    if meta.get("io.modelcontextprotocol/protocolVersion") != MODERN:
        raise LookupError("revision")
    if "io.modelcontextprotocol/clientCapabilities" not in meta:
        raise LookupError("capabilities")
    if method == "server/discover":
        return {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
    if method == "initialize":
        raise LookupError(method)
""",
)


def changed(old: str, new: str, source: str = SERVER) -> str:
    """The server with one text replaced, which must be there."""
    assert old in source, old
    return source.replace(old, new)
