"""Host of environments built with the verifiers package (Prime Intellect), version 1 of its interface.

The environment runs as its own framework runs it, episode loop, tools, stop conditions, users and rewards included.
The model that the framework asks is a server of this process on the loopback interface: it hands each request to the
worker and waits for the reply.
"""

import asyncio
import itertools
import json
import os
import time
from importlib.metadata import version
from typing import Any

import verifiers.v1 as vf
from protocol import TaskProblem, digest_of, serve_sessions

MODEL = "ratchet"
KEY = "RATCHET_LOOPBACK_KEY"


class Policy:
    """The model's side: requests of the framework out, replies of the worker in."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0, limit=8 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One HTTP request a connection: the framework's clients open another one."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lengths = [
                line.split(":", 1)[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")
            ]
            body = json.loads(await reader.readexactly(int(lengths[0])))
            await self.asked.put(body)
            data = json.dumps(completion(await self.replies.get())).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                + f"Content-Length: {len(data)}\r\n\r\n".encode()
                + data
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, IndexError):
            pass  # the framework hung up, or is no longer interested
        finally:
            writer.close()


def completion(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply of the worker as a chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": reply["text"]}
    calls = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for index, call in enumerate(reply["calls"])
    ]
    if calls:
        message["tool_calls"] = calls
    return {
        "id": "chatcmpl-ratchet",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


class Host:
    """One environment, one episode at a time."""

    def __init__(self) -> None:
        self.env: vf.Env | None = None
        self.tasks: list[vf.Task] = []
        self.asked_for: tuple[str, str] = ("", "")
        self.policy = Policy()
        self.episode: asyncio.Task[Any] | None = None
        self.num_seen = 0
        self.serving: Any = None

    async def open(self, request: dict[str, Any]) -> vf.Env:
        """The environment of a request. Raises TaskProblem."""
        wanted = (request["id"], json.dumps(request.get("config", {}), sort_keys=True))
        if self.env is not None and wanted == self.asked_for:
            return self.env
        digest_of(request["id"].replace("-", "_"))
        try:
            seat = {"harness": {"id": "ratchet_harness"}, "model": MODEL, "runtime": {"type": "subprocess"}}
            config = {"taskset": {"id": request["id"], **request.get("config", {})}, "agent": seat}
            env = vf.load_environment(vf.resolve_env_config(config))
        except Exception as error:
            why = " ".join(str(error).split())[:400]
            raise TaskProblem(f"{request['id']} cannot be loaded: {type(error).__name__}: {why}") from error
        if set(env._agent_specs) != {"agent"}:
            raise TaskProblem(f"{request['id']} has the seats {', '.join(env._agent_specs)}; one policy plays one seat")
        os.environ[KEY] = "loopback"
        await self.policy.start()
        self.serving = env.serving()
        await self.serving.__aenter__()
        self.env, self.asked_for = env, wanted
        return env

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Every task with the framework's first request of the policy: prompt and tools as the policy will see them."""
        env = await self.open(request)
        rows = []
        for index, task in enumerate(itertools.islice(env.taskset, request["limit"])):
            first = await self.begin(task)
            if first["event"] != "turn":
                raise TaskProblem(f"task {index} ends before the policy's first turn: {first}")
            await self.stop_episode()
            rows.append(
                {"index": index, "name": task.data.name or "", "key": task.key, "data": fields_of(task), **first}
            )
        return {"event": "tasks", "tasks": rows, **self.about(request)}

    def about(self, request: dict[str, Any]) -> dict[str, Any]:
        module = request["id"].rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_").lower()
        return {"framework": f"verifiers=={version('verifiers')}", "digest": digest_of(module)}

    async def start(self, request: dict[str, Any]) -> dict[str, Any]:
        env = await self.open(request)
        await self.stop_episode()
        found = self.about(request)
        if request.get("digest") and request["digest"] != found["digest"]:
            raise TaskProblem(f"{request['id']} is not the code that the suite was imported from: import it again")
        task = next(itertools.islice(env.taskset, request["index"], None), None)
        if task is None:
            raise TaskProblem(f"{request['id']} has no task {request['index']}")
        return await self.begin(task)

    async def begin(self, task: vf.Task) -> dict[str, Any]:
        assert self.env is not None
        self.policy.asked, self.policy.replies, self.num_seen = asyncio.Queue(), asyncio.Queue(), 0
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{self.policy.port}/v1", api_key_var=KEY)
        context = vf.ModelContext(model=MODEL, client=client)
        self.episode = asyncio.ensure_future(self.env.run_episode(task, context))
        return await self.next_event()

    async def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.episode is None:
            raise TaskProblem("a reply without an episode")
        await self.policy.replies.put({"text": request["text"], "calls": request["calls"]})
        return await self.next_event()

    async def next_event(self) -> dict[str, Any]:
        """The framework's next request, or how the episode ended, whatever comes first."""
        assert self.episode is not None
        asked = asyncio.ensure_future(self.policy.asked.get())
        await asyncio.wait({asked, self.episode}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            body = asked.result()
            new = body["messages"][self.num_seen :]
            self.num_seen = len(body["messages"]) + 1  # the reply to come
            return {"event": "turn", "messages": new, "tools": body.get("tools") or []}
        asked.cancel()
        return ending(self.episode.result())

    async def stop_episode(self) -> None:
        episode, self.episode = self.episode, None
        if episode is not None and not episode.done():
            episode.cancel()
            await asyncio.wait({episode})


def fields_of(task: vf.Task) -> dict[str, Any]:
    """What the task's data holds beside what every task has: an answer, say, from which a reference can be written."""
    common = set(vf.TaskData.model_fields)
    return {name: value for name, value in task.data.model_dump(mode="json").items() if name not in common}


def ending(episode: vf.Episode) -> dict[str, Any]:
    """Reward and end of a finished episode; no reward where the environment itself failed."""
    errors = [f"{error.type}: {error.message}" for error in episode.errors]
    for trace in episode.traces:
        errors += [f"{error.type}: {error.message}" for error in trace.errors]
    trace = episode.traces[-1] if episode.traces else None
    scored = trace is not None and bool(trace.rewards) and all(reward is not None for reward in trace.rewards.values())
    return {
        "event": "end",
        "ok": bool(episode.ok),
        "reward": trace.reward if trace is not None and scored else None,
        "rewards": {name: reward.value for name, reward in trace.rewards.items() if reward} if trace else {},
        "metrics": dict(trace.metrics) if trace else {},
        "stop": (trace.stop_condition or "") if trace else "",
        "errors": errors[:10],
    }


def handlers() -> dict[str, Any]:
    host = Host()
    return {"describe": host.describe, "start": host.start, "reply": host.reply}


if __name__ == "__main__":
    serve_sessions(handlers)
