"""Host of OpenEnv environments: their own server on the loopback interface, spoken to over its WebSocket protocol.

The environment is the folder with `openenv.yaml`; its app runs as it is. Every action is a tool: those of an MCP
environment by their names, else the one tool `step`, whose arguments are the action's fields. Its configuration:
`reset` (arguments of every reset), `split` (tasks of this split by index; else a task is a seed, counted from `seed`),
`instruction` (the system message: OpenEnv has no prompts) and `reward` (the sum of all steps' rewards, or the last).
"""

import asyncio
import contextlib
import importlib
import json
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
import websockets
import yaml
from openenv.core.env_server import http_server  # noqa: F401  imported before sessions are forked
from protocol import MAX_LINE, TaskProblem, digest_of, serve_sessions

CONFIG = {"reset", "split", "seed", "instruction", "reward"}
HIDDEN = ("metadata", "done", "reward")  # of an observation: not for the policy


class Host:
    """One environment, one episode at a time."""

    def __init__(self) -> None:
        self.base = ""
        self.server: uvicorn.Server | None = None
        self.socket: Any = None
        self.is_mcp = False
        self.tools: list[dict[str, Any]] = []
        self.config: dict[str, Any] = {}
        self.rewards: list[float] = []

    async def open(self, request: dict[str, Any]) -> None:
        """Start the environment's server once. Raises TaskProblem."""
        self.config = request.get("config", {})
        if unknown := set(self.config) - CONFIG:
            raise TaskProblem(
                f"config: unknown are {', '.join(sorted(unknown))}; known are {', '.join(sorted(CONFIG))}"
            )
        if self.server is not None:
            return
        app = load_app(request["id"])
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws_max_size=MAX_LINE)
        self.server = uvicorn.Server(config)
        serving = asyncio.ensure_future(self.server.serve())
        while not self.server.started:
            if serving.done():
                raise TaskProblem(f"the server of {request['id']} did not start")
            await asyncio.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.base = f"127.0.0.1:{port}"
        schema = await asyncio.to_thread(fetch, f"http://{self.base}/schema")
        properties = schema["action"].get("properties", {})
        self.is_mcp = {"tool_name", "arguments"} <= set(properties)
        if not self.is_mcp:
            shown = {name: value for name, value in properties.items() if name != "metadata"}
            parameters = {**schema["action"], "properties": shown}
            self.tools = [tool("step", schema["action"].get("description", "One action."), parameters)]

    async def begin(self, index: int) -> dict[str, Any]:
        """A new session of the server, reset; its first observation."""
        if self.socket is not None:
            await self.socket.close()
        self.socket = await websockets.connect(f"ws://{self.base}/ws", max_size=MAX_LINE, open_timeout=30)
        self.rewards = []
        if self.is_mcp:
            listed = await self.ask({"type": "step", "data": {"type": "list_tools"}})
            self.tools = [
                tool(
                    entry["name"],
                    entry.get("description") or "",
                    entry.get("input_schema") or entry.get("inputSchema") or {},
                )
                for entry in listed["observation"].get("tools", [])
            ]
        where = (
            {"split": self.config["split"], "index": index} if "split" in self.config else {"seed": self.seed(index)}
        )
        first = await self.ask({"type": "reset", "data": {**where, **self.config.get("reset", {})}})
        instruction = self.config.get("instruction", "")
        messages = [{"role": "system", "content": instruction}] if instruction else []
        messages.append({"role": "user", "content": text_of(first["observation"])})
        return {"event": "turn", "messages": messages, "tools": self.tools}

    def seed(self, index: int) -> int:
        return int(self.config.get("seed", 0)) + index

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        await self.socket.send(json.dumps(message))
        answer = json.loads(await self.socket.recv())
        if answer.get("type") == "error":
            raise ActionRefused(str(answer["data"].get("message", answer["data"]))[:500])
        data: dict[str, Any] = answer["data"]
        return data

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        await self.open(request)
        rows = []
        for index in range(request["limit"]):
            first = await self.begin(index)
            rows.append({"index": index, "name": "", "key": str(self.seed(index)), **first})
        return {"event": "tasks", "tasks": rows, **about(request)}

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        found = about(request)
        if request.get("digest") and request["digest"] != found["digest"]:
            raise TaskProblem(f"{request['id']} is not the code that the suite was imported from: import it again")
        await self.open(request)
        return await self.begin(request["index"])

    async def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """Actions of a turn; a turn without one is the policy's last word."""
        messages = []
        for call in request["calls"]:
            action = {"type": "call_tool", "tool_name": call["name"], "arguments": call["arguments"]}
            try:
                data = await self.ask({"type": "step", "data": action if self.is_mcp else call["arguments"]})
            except ActionRefused as error:
                messages.append({"role": "tool", "content": f"error: {error}"})
                continue
            if isinstance(data.get("reward"), (int, float)):
                self.rewards.append(float(data["reward"]))
            messages.append({"role": "tool", "content": text_of(data["observation"])})
            if data.get("done"):
                return self.ending("done", messages)
        if not request["calls"]:
            return self.ending("answered", [])
        return {"event": "turn", "messages": messages, "tools": self.tools}

    def ending(self, stop: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        reward = self.rewards[-1] if self.rewards and self.config.get("reward") == "last" else sum(self.rewards)
        rewards = {"sum": sum(self.rewards), "last": self.rewards[-1] if self.rewards else 0.0}
        return {
            "event": "end", "ok": True, "reward": reward, "rewards": rewards, "stop": stop, "errors": [],
            "messages": messages,
        }  # fmt: skip


class ActionRefused(Exception):
    """The environment does not take this action: told to the policy."""


def load_app(module: str) -> Any:
    """The app that openenv.yaml names. Raises TaskProblem."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise TaskProblem(f"the environment {module!r} is not installed beside openenv")
    manifest = Path(next(iter(spec.submodule_search_locations))) / "openenv.yaml"
    try:
        app = yaml.safe_load(manifest.read_text(encoding="utf-8"))["app"]
        path, _, name = app.partition(":")
        return getattr(importlib.import_module(f"{module}.{path}"), name or "app")
    except Exception as error:
        raise TaskProblem(f"{module}: its app cannot be loaded: {type(error).__name__}: {error}") from error


def about(request: dict[str, Any]) -> dict[str, Any]:
    return {"framework": f"openenv=={version('openenv')}", "digest": digest_of(request["id"])}


def tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def text_of(observation: dict[str, Any]) -> str:
    """An observation as the policy reads it: its fields as JSON, a lone text as itself."""
    shown = {name: value for name, value in observation.items() if name not in HIDDEN and value is not None}
    result = shown.get("result")
    if isinstance(result, dict) and isinstance(result.get("content"), list):  # of an MCP tool
        return "\n".join(str(part.get("text", part)) for part in result["content"])
    if not shown:
        return "The environment is ready."
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return only
    return json.dumps(shown, sort_keys=True, default=str)


def fetch(url: str) -> dict[str, Any]:
    with contextlib.closing(urllib.request.urlopen(url, timeout=30)) as answer:  # noqa: S310  loopback
        found: dict[str, Any] = json.load(answer)
        return found


def handlers() -> dict[str, Any]:
    host = Host()
    return {"describe": host.describe, "start": host.start, "reply": host.reply}


if __name__ == "__main__":
    serve_sessions(handlers)
