import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled
from gpu_workers.serving.app import GatewayOptions, make_app
from gpu_workers.serving.control import SECRET_HEADER
from tests.unit.gpu_workers.rollout.scripted import ScriptedEngine

TOKEN = {"Authorization": "Bearer good"}
ASK = {"model": "demo/production", "messages": [{"role": "user", "content": "hi"}]}
OLD = {"project": "demo", "channel": "production", "policy": "sft", "adapter": "", "epoch": 1}
NEW = OLD | {"policy": "rl", "adapter": "policy-b", "adapter_uri": "runs/b", "adapter_sha256": "bb", "epoch": 2}


class Control:
    """The control plane's side, in memory."""

    def __init__(self) -> None:
        self.channels: list[dict[str, Any]] = [OLD]
        self.tokens = {"good": ["demo"], "other": ["elsewhere"]}
        self.acks: list[tuple[str, int]] = []
        self.num_introspections = 0
        self.down = False

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.headers[SECRET_HEADER] == "shh"
        if self.down:
            raise httpx.ConnectError("refused")
        body = json.loads(request.content) if request.content else {}
        if request.url.path == "/internal/introspect":
            self.num_introspections += 1
            projects = self.tokens.get(body["token"])
            return httpx.Response(200, json={"active": projects is not None, "user": "u", "projects": projects or []})
        if request.url.path == "/internal/ack":
            self.acks.append((body["gateway"], body["epoch"]))
            return httpx.Response(200, json={})
        return httpx.Response(200, json={"channels": self.channels})


class Setup:
    """A gateway over a scripted engine."""

    def __init__(self, model: Path) -> None:
        self.control = Control()
        self.engine = ScriptedEngine(model, lambda _, text: f"you said {text.split()[-2]}", adapters=())
        self.installed: list[str] = []
        self.install_ok = True
        options = GatewayOptions(
            control_url="http://control",
            secret="shh",
            redis_url="",
            models_dir=model.parent,
            connect=lambda: [self.engine],
            installer=lambda engines: self.install,
            name="g1",
            control_transport=httpx.MockTransport(self.control),
        )
        self.app = make_app(options)

    async def install(self, adapters: list[AdapterInstall]) -> PolicyInstalled:
        if self.install_ok:
            self.installed += [adapter.name for adapter in adapters]
            self.engine.adapters = (*self.engine.adapters, *(adapter.name for adapter in adapters))
        return PolicyInstalled(job_id="", ok=self.install_ok, message="disk full")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self.app.router.lifespan_context(self.app):
            await self.gateway.table.refresh()
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
                yield client

    @property
    def gateway(self):
        return self.app.state.gateway

    @property
    def last_adapter(self) -> str:
        return self.engine.requests[-1].adapter


@pytest.fixture
def setup(tiny_model: Path) -> Setup:
    made = Setup(tiny_model)
    # The scripted engine reads the episode's number out of the request id, which a gateway's lacks.
    made.engine.generate = _numbered(made.engine.generate)  # type: ignore[method-assign]
    return made


def _numbered(generate):
    from dataclasses import replace

    async def call(request):
        return await generate(replace(request, request_id=f"g.1.0.{request.request_id}"))

    return call


async def test_a_whole_completion(setup: Setup) -> None:
    async with setup.running() as client:
        response = await client.post("/v1/chat/completions", json=ASK | {"seed": 3, "temperature": 0}, headers=TOKEN)
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "you said hi"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["system_fingerprint"] == "sft@1"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    sampling = setup.engine.requests[0].sampling
    assert (sampling.seed, sampling.temperature) == (3, 0)


async def test_an_answer_may_be_held_to_a_schema(setup: Setup) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "integer"}}}
    async with setup.running() as client:
        for held in (wanted, {"type": "json_object"}, {"type": "text"}):
            response = await client.post("/v1/chat/completions", json=ASK | {"response_format": held}, headers=TOKEN)
            assert response.status_code == 200, response.text
    found = [request.constraint and request.constraint.text for request in setup.engine.requests]
    assert found == ['{"type": "integer"}', '{"type": "object"}', None]


async def test_a_streamed_completion_gives_the_same_text(setup: Setup) -> None:
    ask = ASK | {"stream": True, "stream_options": {"include_usage": True}}
    async with setup.running() as client:
        response = await client.post("/v1/chat/completions", json=ask, headers=TOKEN)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content", "") for delta in deltas) == "you said hi"
    assert len(deltas) > 3
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] > 0


async def test_stop_texts_and_length(setup: Setup) -> None:
    async with setup.running() as client:
        stopped = await client.post("/v1/chat/completions", json=ASK | {"stop": "said"}, headers=TOKEN)
        short = await client.post("/v1/chat/completions", json=ASK | {"max_tokens": 3}, headers=TOKEN)
    assert stopped.json()["choices"][0]["message"]["content"] == "you "
    assert short.json()["choices"][0]["finish_reason"] == "length"
    assert short.json()["usage"]["completion_tokens"] == 3


async def test_a_stream_shows_nothing_of_a_stop_text(setup: Setup) -> None:
    """Its tokens come one by one: the first ones could be of anything."""
    async with setup.running() as client:
        response = await client.post("/v1/chat/completions", json=ASK | {"stop": "said", "stream": True}, headers=TOKEN)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == "you "


@pytest.mark.parametrize("body", [b'{"model": "\\ud800"}', b"\xff", b"[" * 100_000, b"{", b'{"temperature": NaN}'])
async def test_a_body_that_is_no_json_is_said_to_be_none(setup: Setup, body: bytes) -> None:
    async with setup.running() as client:
        response = await client.post("/v1/chat/completions", content=body, headers=TOKEN)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_only_a_live_token_of_the_project_is_served(setup: Setup) -> None:
    async with setup.running() as client:
        statuses = {
            name: (await client.post("/v1/chat/completions", json=ASK, headers=headers)).status_code
            for name, headers in {
                "none": {},
                "basic": {"Authorization": "Basic good"},
                "unknown": {"Authorization": "Bearer bad"},
                "long": {"Authorization": f"Bearer {'x' * 500}"},
                "other project": {"Authorization": "Bearer other"},
                "good": TOKEN,
            }.items()
        }
        models = await client.get("/v1/models", headers={"Authorization": "Bearer other"})
    assert statuses == {"none": 401, "basic": 401, "unknown": 401, "long": 401, "other project": 404, "good": 200}
    assert models.json()["data"] == []


async def test_models_are_the_channels(setup: Setup) -> None:
    async with setup.running() as client:
        models = await client.get("/v1/models", headers=TOKEN)
    assert [model["id"] for model in models.json()["data"]] == ["demo/production"]


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"messages": []}, "missing_parameter", "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": [], "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": "user", "content": "x" * 1_900_000}]}, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "invalid_value", "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, "context_length_exceeded", "messages"),
        ({"temperature": 9}, "invalid_value", "temperature"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"tools": [{}]}, "unsupported_parameter", "tools"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}}},
            "invalid_value",
            "response_format.json_schema.schema",
        ),
        ({"model": "demo/absent"}, "model_not_found", "model"),
    ],
)
async def test_a_bad_request_names_the_parameter(setup: Setup, change: dict[str, Any], code: str, param: str) -> None:
    async with setup.running() as client:
        response = await client.post("/v1/chat/completions", json=ASK | change, headers=TOKEN)
    error = response.json()["error"]
    assert response.status_code in (400, 404)
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")


async def test_a_move_switches_after_the_adapter_is_installed_and_is_acknowledged(setup: Setup) -> None:
    async with setup.running() as client:
        await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
        assert setup.last_adapter == ""
        setup.control.channels = [NEW]
        await setup.gateway.table.refresh()
        response = await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
        assert (setup.last_adapter, response.json()["system_fingerprint"]) == ("policy-b", "rl@2")
        assert setup.installed == ["policy-b"]
        assert setup.control.acks[0] == ("g1", 1)
        assert setup.control.acks[-1] == ("g1", 2)
        setup.control.channels = [OLD | {"epoch": 3}]
        await setup.gateway.table.refresh()
        await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
        assert setup.last_adapter == ""
        assert setup.control.acks[-1] == ("g1", 3)


async def test_a_failed_install_keeps_the_old_policy_and_says_so(setup: Setup) -> None:
    setup.install_ok = False
    async with setup.running() as client:
        setup.control.channels = [NEW]
        await setup.gateway.table.refresh()
        response = await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
        health = await client.get("/health")
    assert response.json()["system_fingerprint"] == "sft@1"
    assert {epoch for _, epoch in setup.control.acks} == {1}
    assert "disk full" in health.json()["problem"]


async def test_a_request_in_flight_ends_on_the_policy_it_began_with(setup: Setup) -> None:
    release = asyncio.Event()
    generate = setup.engine.generate

    async def slow(request):
        await release.wait()
        return await generate(request)

    setup.engine.generate = slow  # type: ignore[method-assign]
    async with setup.running() as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=ASK, headers=TOKEN))
        await asyncio.sleep(0.05)
        setup.control.channels = [NEW]
        await setup.gateway.table.refresh()
        release.set()
        response = await asked
    assert response.json()["system_fingerprint"] == "sft@1"
    assert setup.last_adapter == ""


async def test_an_adapter_that_the_engine_lost_is_put_back(setup: Setup) -> None:
    setup.control.channels = [NEW]
    async with setup.running() as client:
        setup.engine.adapters = ()
        response = await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
    assert response.status_code == 200
    assert setup.installed == ["policy-b", "policy-b"]


async def test_introspection_is_cached_until_revoked(setup: Setup) -> None:
    async with setup.running() as client:
        for _ in range(3):
            await client.get("/v1/models", headers=TOKEN)
        assert setup.control.num_introspections == 1
        del setup.control.tokens["good"]
        revoked = {"kind": "token_revoked", "sha256": hashlib.sha256(b"good").hexdigest()}
        setup.gateway.follower.notice(json.dumps(revoked).encode())
        response = await client.get("/v1/models", headers=TOKEN)
    assert response.status_code == 401


async def test_outages_are_503_in_openais_format(setup: Setup) -> None:
    async with setup.running() as client:
        setup.control.down = True
        unknown = await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
        setup.control.down = False
        setup.engine.down = True
        engine = await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (503, "control_plane_unavailable")
    assert (engine.status_code, engine.json()["error"]["code"]) == (503, "engine_unavailable")
    assert unknown.headers["retry-after"]


async def test_channels_outlive_the_control_plane(setup: Setup) -> None:
    async with setup.running() as client:
        await client.get("/v1/models", headers=TOKEN)
        setup.control.down = True
        await setup.gateway.table.refresh()
        response = await client.post("/v1/chat/completions", json=ASK, headers=TOKEN)
    assert response.status_code == 200


async def test_an_engine_that_fails_in_mid_stream_ends_it_with_an_error(setup: Setup) -> None:
    async with setup.running() as client:
        generate = setup.engine.generate

        async def fail(request):
            setup.engine.down = True
            return await generate(request)

        setup.engine.generate = fail  # type: ignore[method-assign]
        response = await client.post("/v1/chat/completions", json=ASK | {"stream": True}, headers=TOKEN)
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "engine_error"
