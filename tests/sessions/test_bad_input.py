"""What is refused, and how: every refusal is OpenAI's error with a code, and leaves the session as it was."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_workers.sessions.chat import load_template
from tests.sessions.world import OWNER, RecordingEngine, hermes, make_app, make_server, say

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {"x": {}}}}}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "calc", "arguments": "{}"}}],
}


class World:
    def __init__(self, model: Path, folder: Path, **limits: float) -> None:
        self.now = 1000.0
        self.engine = RecordingEngine(model, say(load_template(model), "Five."))
        self.server = make_server(folder, [self.engine], **limits)
        self.server.table._clock = lambda: self.now
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(make_app(self.server)), base_url="http://s")

    async def open(self, **spec: Any) -> tuple[str, dict[str, str]]:
        made = (await self.client.post("/sessions", json=spec, headers=OWNER)).json()
        return f"/sessions/{made['id']}", {"Authorization": f"Bearer {made['token']}"}

    async def ask(self, session: tuple[str, dict[str, str]], **change: Any) -> httpx.Response:
        path, headers = session
        return await self.client.post(f"{path}/v1/chat/completions", json=ASK | change, headers=headers)


@pytest.fixture
async def world(tiny_model: Path, tmp_path: Path) -> AsyncIterator[World]:
    made = World(tiny_model, tmp_path / "sessions", max_sessions=3, max_session_tokens=600, idle_seconds=60)
    async with made.client:
        yield made
    made.server.close()


def error(response: httpx.Response) -> tuple[int, str, str | None]:
    body = response.json()["error"]
    assert body["message"]
    return response.status_code, body["code"], body["param"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"messages": []}, (400, "invalid_value", "messages")),
        ({"messages": [{"role": "boss", "content": "x"}]}, (400, "invalid_value", "messages.0.role")),
        ({"messages": [{"role": "user", "content": 3}]}, (400, "invalid_value", "messages.0.content")),
        ({"messages": [{"role": "user"}]}, (400, "invalid_value", "messages.0.content")),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            (400, "invalid_value", "messages.0.content.0.type"),
        ),
        ({"messages": [{"role": "assistant", "content": "x"}]}, (400, "invalid_value", "messages.0")),
        (
            {"messages": [*ASK["messages"], {"role": "assistant", "content": "x"}]},
            (400, "invalid_value", "messages.1"),
        ),
        (
            {"messages": [*ASK["messages"], CALLED, CALLED, *ASK["messages"]]},
            (400, "invalid_value", "messages.2"),
        ),
        (
            {"messages": [*ASK["messages"], CALLED, {"role": "tool", "tool_call_id": "c2", "content": "5"}]},
            (400, "invalid_value", "messages.2"),
        ),
        ({"messages": [{"role": "tool", "content": "5"}]}, (400, "invalid_value", "messages.0.tool_call_id")),
        ({"messages": [{"role": "user", "content": "x" * 1100}]}, (400, "context_length_exceeded", "messages")),
        ({"messages": [{"role": "user", "content": "a " * 2_000_000}]}, (400, "context_length_exceeded", "messages")),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": "a " * 2_000_000}}]},
            (400, "context_length_exceeded", "messages"),
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f\n"}}]},
            (400, "invalid_value", "tools.0.function.name"),
        ),
        ({"model": None}, (400, "invalid_value", "model")),
        ({"temperature": 9}, (400, "invalid_value", "temperature")),
        ({"top_p": 0}, (400, "invalid_value", "top_p")),
        ({"n": 0}, (400, "invalid_value", "n")),
        ({"n": 17}, (400, "invalid_value", "n")),
        ({"max_tokens": 0}, (400, "invalid_value", "max_tokens")),
        ({"stop": ["a", "b", "c", "d", "e"]}, (400, "invalid_value", "stop")),
        ({"stop": ""}, (400, "invalid_value", "stop")),
        ({"tools": [{"type": "web"}]}, (400, "invalid_value", "tools.0.type")),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": 5}}}]},
            (400, "invalid_value", "tools.0.function.parameters.properties"),
        ),
        ({"tools": [TOOL, TOOL]}, (400, "invalid_value", "tools")),
        ({"tools": [TOOL], "tool_choice": "must"}, (400, "invalid_value", "tool_choice")),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "rm"}}},
            (400, "unknown_tool", "tool_choice"),
        ),
        ({"response_format": {"type": "yaml"}}, (400, "invalid_value", "response_format.type")),
        ({"logit_bias": {"5": 1}}, (400, "unsupported_parameter", "logit_bias")),
        ({"presence_penalty": 0.5}, (400, "unsupported_parameter", "presence_penalty")),
        ({"top_logprobs": 3}, (400, "unsupported_parameter", "top_logprobs")),
        ({"functions": [{}]}, (400, "unsupported_parameter", "functions")),
        ({"modalities": ["audio"]}, (400, "unsupported_parameter", "modalities")),
    ],
)
async def test_a_request_that_cannot_be_met(world: World, change: dict[str, Any], expected: tuple[Any, ...]) -> None:
    session = await world.open()
    assert error(await world.ask(session, **change)) == expected
    shown = (await world.client.get(session[0], headers=OWNER)).json()
    assert (shown["num_turns"], shown["num_tokens"], shown["num_running"]) == (0, 0, 0)
    assert world.engine.served == []


async def test_calls_that_an_agent_made_up(world: World) -> None:
    """Arguments that are no object, half a character or nested without end: read as text, or refused; never a 500."""
    session = await world.open()
    result = {"role": "tool", "tool_call_id": "c1", "content": "5"}
    for arguments in (
        "",
        "x",
        "[1]",
        '{"x": "\\ud800"}',
        '{"x": "\\u0000"}',
        "{" * 5000,
        '{"x":' * 900 + "1" + "}" * 900,
    ):
        call = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": arguments}}
        made = {"role": "assistant", "content": None, "tool_calls": [call]}
        answer = await world.ask(session, messages=[*ASK["messages"], made, result])
        assert answer.status_code in (200, 400), arguments
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"x": deep}
    tool = {"type": "function", "function": {"name": "calc", "parameters": deep}}
    assert (await world.ask(session, tools=[tool])).status_code == 400


async def test_missing_fields_and_broken_bodies(world: World) -> None:
    path, headers = await world.open()
    url = f"{path}/v1/chat/completions"
    missing = await world.client.post(url, json={"messages": ASK["messages"]}, headers=headers)
    assert error(missing) == (400, "missing_parameter", "model")
    for content in (b"", b"{", b"[]", b'{"model": "\xff"}', b'{"model": "\\ud800"}', b"[" * 100_000):
        assert error(await world.client.post(url, content=content, headers=headers))[0] == 400
    large = await world.client.post(url, content=b" " * (8 * 2**20 + 1), headers=headers)
    assert error(large)[:2] == (413, "body_too_large")
    spec = await world.client.post("/sessions", content=b" " * (64 * 2**10 + 1), headers=OWNER)
    assert error(spec)[:2] == (413, "body_too_large")


async def test_only_the_secret_opens_and_only_the_token_enters(world: World) -> None:
    path, headers = await world.open()
    _, other_headers = await world.open()
    chat = "/v1/chat/completions"
    for bad in ({}, {"X-Ratchet-Worker-Secret": "x"}, {"X-Ratchet-Worker-Secret": ""}, headers):
        assert error(await world.client.post("/sessions", json={}, headers=bad))[:2] == (401, "invalid_secret")
        assert error(await world.client.get(f"{path}/trajectory", headers=bad))[:2] == (401, "invalid_secret")
        assert error(await world.client.get(path, headers=bad))[:2] == (401, "invalid_secret")
        assert error(await world.client.delete(path, headers=bad))[:2] == (401, "invalid_secret")
        assert error(await world.client.put(f"{path}/policy", json={}, headers=bad))[:2] == (401, "invalid_secret")
    for bad in ({}, OWNER, other_headers, {"Authorization": "Basic x"}, {"Authorization": "Bearer "}):
        assert error(await world.client.post(f"{path}{chat}", json=ASK, headers=bad))[0] == 401
        assert error(await world.client.get(f"{path}/v1/models", headers=bad))[0] == 401
    assert world.engine.served == []


async def test_unknown_deleted_and_expired_sessions_are_told_apart(world: World) -> None:
    deleted, expired = await world.open(), await world.open(idle_seconds=10)
    for name in ("0" * 32, "x", "..%2f..%2fetc", "a" * 500):
        missing = (f"/sessions/{name}", deleted[1])
        assert (await world.ask(missing)).status_code == 404
    assert (await world.client.delete(deleted[0], headers=OWNER)).status_code == 204
    assert error(await world.ask(deleted))[:2] == (404, "session_not_found")
    assert (await world.client.delete(deleted[0], headers=OWNER)).status_code == 404
    assert (await world.ask(expired)).status_code == 200
    world.now += 9
    assert (await world.ask(expired)).status_code == 200
    world.now += 11
    assert error(await world.ask(expired))[:2] == (410, "session_expired")
    assert error(await world.client.get(f"{expired[0]}/trajectory", headers=OWNER))[:2] == (410, "session_expired")


async def test_sessions_are_bounded_in_number_and_tokens(world: World) -> None:
    sessions = [await world.open() for _ in range(3)]
    full = await world.client.post("/sessions", json={}, headers=OWNER)
    assert error(full)[:2] == (429, "too_many_sessions")
    world.now += 61
    assert (await world.client.post("/sessions", json={}, headers=OWNER)).status_code == 201  # the idle ones are gone
    assert error(await world.ask(sessions[0]))[0] == 410

    session = await world.open()
    content, answers = "x" * 100, []
    for number in range(8):
        answers.append(await world.ask(session, messages=[{"role": "user", "content": f"{number}{content}"}]))
    codes = [answer.status_code for answer in answers]
    assert codes == sorted(codes)
    assert codes[0] == 200
    assert error(answers[-1])[:2] == (400, "session_full")
    shown = (await world.client.get(session[0], headers=OWNER)).json()
    assert 500 < shown["num_tokens"] <= 600


async def test_all_sessions_together_are_bounded(tiny_model: Path, tmp_path: Path) -> None:
    world = World(tiny_model, tmp_path / "sessions", max_tokens=48)
    async with world.client:
        first, second = await world.open(), await world.open()
        assert (await world.ask(first)).status_code == 200
        assert error(await world.ask(second))[:2] == (429, "too_many_tokens")
        await world.client.delete(first[0], headers=OWNER)
        assert (await world.ask(second)).status_code == 200
    world.server.close()


async def test_an_adapter_that_no_engine_holds(world: World) -> None:
    spec = {"policy": {"adapter": "other@v9", "version": 9}}
    response = await world.client.post("/sessions", json=spec, headers=OWNER)
    assert error(response) == (404, "unknown_adapter", "policy.adapter")
    session = await world.open(policy={"adapter": "run-1.a1@v1", "version": 1})
    moved = await world.client.put(f"{session[0]}/policy", json=spec["policy"], headers=OWNER)
    assert error(moved)[:2] == (404, "unknown_adapter")
    moved = await world.client.put(f"{session[0]}/policy", json={"version": 2**64}, headers=OWNER)
    assert error(moved) == (400, "invalid_value", "version")
    world.engine.adapters = ()  # it was unloaded meanwhile
    assert error(await world.ask(session))[:2] == (409, "adapter_not_loaded")
    streamed = await world.ask(session, stream=True)
    assert '"adapter_not_loaded"' in streamed.text


@pytest.mark.parametrize(
    "spec",
    [
        {"policy": 3},
        {"tool_format": "xml"},
        {"temperature": "hot"},
        {"temperature": -1},
        {"top_p": 0},
        {"max_new_tokens": None},
        {"max_new_tokens": 0},
        {"context_limit": 0},
        {"idle_seconds": -1},
        {"seed": 10**30},
        {"seed": -(10**30)},
        {"max_new_tokens": 2**64},
        {"context_limit": 2**64},
        {"policy": {"version": 2**64}},
        {"label": "x" * 201},
        [],
        "x",
    ],
)
async def test_a_session_that_cannot_be_made(world: World, spec: Any) -> None:
    assert error(await world.client.post("/sessions", json=spec, headers=OWNER))[0] == 400


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "calc", "arguments": {"x": 1}',
        '<tool_call>{"name": "calc", "arguments": }</tool_call>',
        '<tool_call>{"name": "calc", "arguments": {"x": 1, "x": 2}}</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        "Well <tool_c",
        hermes("calc", x=1) + "<tool_call>",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_call_is_text_and_its_tokens_stay(world: World, text: str, stream: bool) -> None:
    session = await world.open()
    world.engine.plan = say(world.engine.template, text)
    response = await world.ask(session, tools=[TOOL], stream=stream)
    if stream:
        assert '"finish_reason":"stop"' in response.text
        assert '"tool_calls"' not in response.text
    else:
        choice = response.json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    branch = (await world.client.get(f"{session[0]}/trajectory", headers=OWNER)).json()["branches"][0]
    sampled = [token for token, m in zip(branch["ids"], branch["mask"], strict=True) if m]
    assert sampled == world.engine.served[0].ids


async def test_a_call_of_an_unknown_tool_is_the_agents_to_answer(world: World) -> None:
    session = await world.open()
    world.engine.plan = say(world.engine.template, hermes("rm", x=1))
    message = (await world.ask(session, tools=[TOOL])).json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "rm"
    world.engine.plan = say(world.engine.template, hermes("calc", x=1))
    silent = (await world.ask(session, tools=[TOOL], tool_choice="none")).json()["choices"][0]
    assert silent["finish_reason"] == "stop"
    assert "tool_calls" not in silent["message"]


async def test_a_changed_beginning_is_a_branch_and_the_old_one_stays(world: World) -> None:
    session = await world.open()
    said = (await world.ask(session)).json()["choices"][0]["message"]
    other = [{"role": "user", "content": "ho"}, said, {"role": "user", "content": "more"}]
    answer = (await world.ask(session, messages=other)).json()
    assert answer["session"]["reused_tokens"] == 0
    body = (await world.client.get(f"{session[0]}/trajectory", params={"branch": "all"}, headers=OWNER)).json()
    first, second = world.engine.served
    changed, kept = body["branches"]
    assert kept["ids"] == [*first.request.input_ids, *first.ids]
    assert changed["ids"] == [*second.request.input_ids, *second.ids]
    assert sum(changed["mask"]) == len(second.ids)  # the answer quoted in it was sampled elsewhere: read, not learnt
    gone = await world.client.get(f"{session[0]}/trajectory", params={"branch": "99"}, headers=OWNER)
    assert error(gone)[:2] == (404, "branch_not_found")


async def test_a_disk_that_takes_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    session = await world.open()
    assert (await world.ask(session)).status_code == 200
    write = os.write

    def full(file: int, data: bytes) -> int:
        write(file, data[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gpu_workers.sessions.journal.os.write", full)
    assert error(await world.ask(session))[:2] == (503, "storage_unavailable")
    assert '"storage_unavailable"' in (await world.ask(session, stream=True)).text
    assert error(await world.client.post("/sessions", json={}, headers=OWNER))[:2] == (503, "storage_unavailable")
    monkeypatch.undo()
    assert (await world.ask(session)).status_code == 200
    body = (await world.client.get(f"{session[0]}/trajectory", params={"branch": "all"}, headers=OWNER)).json()
    assert body["num_turns"] == 2


async def test_a_folder_in_use_is_said(world: World, tiny_model: Path, tmp_path: Path) -> None:
    second = World.__new__(World)
    server = make_server(tmp_path / "sessions", [world.engine])
    second.client = httpx.AsyncClient(transport=httpx.ASGITransport(make_app(server)), base_url="http://s")
    async with second.client:
        response = await second.client.post("/sessions", json={}, headers=OWNER)
    assert error(response)[:2] == (503, "sessions_unavailable")
    assert "in use" in response.json()["error"]["message"]


async def test_a_long_text_is_refused_before_it_is_encoded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding takes seconds, in which nobody else would be served."""
    session, template = await world.open(), world.engine.template
    monkeypatch.setattr(type(template), "_encode", lambda *_: pytest.fail("it was encoded"))
    long = [{"role": "user", "content": "a " * 2_000_000}]
    assert error(await world.ask(session, messages=long))[1] == "context_length_exceeded"


async def test_the_weights_that_a_policy_names_are_asked_for(world: World) -> None:
    session = await world.open(policy={"weights": "run-1.a1@v3", "version": 3})
    await world.ask(session)
    assert world.engine.served[-1].request.weights == "run-1.a1@v3"
