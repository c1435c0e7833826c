"""Answers under a schema and calls that are forced: OpenAI's own client, the session server, the embedded engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import msgspec
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.contracts.seams import GenerateRequest
from gpu_workers.contracts.tasks import ToolSpec
from gpu_workers.contracts.trajectories import Branch, Trajectory
from gpu_workers.engines.embedded.grammars import GrammarMatcher, Grammars
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.serving.session_server import SessionServer
from gpu_workers.sessions.chat import load_template
from gpu_workers.sessions.constraints import call_constraint
from gpu_workers.sessions.formats import ToolFormat, read_calls
from gpu_workers.sessions.limits import SessionLimits
from tests.sessions.world import OWNER, SECRET, Planned, RecordingEngine, make_app, make_server, served
from tests.unit.gpu_workers.engines.serving import serving

ASK: list[Any] = [{"role": "user", "content": "Which animal?"}]
ADD = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
NONE = {"type": "object", "properties": {}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": ADD}},
    {"type": "function", "function": {"name": "stop", "parameters": NONE}},
]
BY_NAME = {"add": ADD, "stop": NONE}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    tame: bool


class World:
    def __init__(self, url: str) -> None:
        self.url = url
        self.clients: list[OpenAI] = []

    def open(self, **spec: Any) -> OpenAI:
        made = httpx.post(f"{self.url}/sessions", json=spec, headers=OWNER).json()
        self.id = made["id"]
        client = OpenAI(base_url=f"{self.url}{made['base_path']}", api_key=made["token"], max_retries=0, timeout=60)
        self.clients.append(client)
        return client

    def trajectory(self) -> Trajectory:
        answer = httpx.get(f"{self.url}/sessions/{self.id}/trajectory", params={"branch": "all"}, headers=OWNER)
        return msgspec.json.decode(answer.content, type=Trajectory)


@pytest.fixture(scope="module")
def world(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The tiny model's texts are random: what reads well was made to."""
    with serving(tiny_model) as (engine_url, _):
        engine = SGLangEngine(engine_url)
        folder = tmp_path_factory.mktemp("held") / "sessions"
        server = SessionServer(folder, [engine], tiny_model.parent, SECRET, SessionLimits())
        app = make_app(server)
        app.router.routes.append(Route("/close", closing(engine)))  # in the loop that its connections belong to
        with served(app) as url:
            made = World(url)
            yield made
            for client in made.clients:
                client.close()
            httpx.get(f"{url}/close")
        server.close()


def closing(engine: SGLangEngine) -> Callable[[Request], Awaitable[Response]]:
    async def close(_: Request) -> Response:
        await engine.close()
        return Response()

    return close


def test_an_answer_of_a_pydantic_model(world: World) -> None:
    answer = world.open(seed=1).chat.completions.parse(model="policy", messages=ASK, response_format=Animal)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Animal)


def test_choices_are_held_each_for_itself(world: World) -> None:
    schema = {"name": "animal", "schema": Animal.model_json_schema()}
    wanted: Any = {"type": "json_schema", "json_schema": schema}
    answer = world.open(seed=2).chat.completions.create(model="policy", messages=ASK, response_format=wanted, n=6)
    found = {Animal.model_validate_json(choice.message.content or "").kind for choice in answer.choices}
    assert found == {"cat", "dog"}


def test_a_json_object_as_a_stream_with_usage(world: World) -> None:
    stream = world.open(seed=8).chat.completions.create(
        model="policy", messages=ASK, response_format={"type": "json_object"}, stream=True, max_tokens=900,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
    assert text.startswith("{")
    assert finish == "length" or isinstance(json.loads(text), dict)
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


def test_what_is_cut_is_cut(world: World) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "a long text"}}}
    ask = world.open().chat.completions.create
    cut = ask(model="policy", messages=ASK, response_format=wanted, max_tokens=7).choices[0]
    assert (cut.message.content, cut.finish_reason) == ('"a long', "length")
    stopped = ask(model="policy", messages=ASK, response_format=wanted, stop="long").choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ('"a ', "stop")


@pytest.mark.parametrize("form", ["hermes", "llama", "mistral", "json"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_in_every_format_that_can_be_held_to(world: World, form: str, stream: bool) -> None:
    client = world.open(tool_format=form, seed=4)
    forced: Any = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", forced):
        options: Any = {"messages": ASK, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        if stream:
            with client.chat.completions.stream(model="policy", **options) as events:
                said = events.get_final_completion().choices[0]
        else:
            said = client.chat.completions.create(model="policy", **options).choices[0]
        assert said.finish_reason == "tool_calls"
        assert len(said.message.tool_calls or ()) == 1
        for call in said.message.tool_calls or ():
            assert call.type == "function"
            assert choice == "required" or call.function.name == "add"
            jsonschema.validate(json.loads(call.function.arguments), BY_NAME[call.function.name])
    assert world.trajectory().branches[0].num_constrained_tokens > 20


def test_a_forced_call_is_answered_and_the_conversation_goes_on_freely(world: World) -> None:
    client = world.open(tool_format="hermes", seed=5, max_new_tokens=200)
    held: Any = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}}
    message = client.chat.completions.create(model="policy", messages=ASK, **held).choices[0].message
    calls = message.tool_calls or []
    messages: list[Any] = [*ASK, message, {"role": "tool", "tool_call_id": calls[0].id, "content": "3"}]
    free: Any = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, max_tokens=9)
    assert free.session["constrained"] is False
    trajectory = world.trajectory()
    (branch,), (fork,) = trajectory.branches, trajectory.forks
    check_only_free_tokens_are_trained_on(branch, free.usage.completion_tokens)
    assert fork.num_sampled_tokens == branch.num_constrained_tokens + free.usage.completion_tokens


def check_only_free_tokens_are_trained_on(branch: Branch, num_free: int) -> None:
    """Behaviour log-probs under a grammar are not the policy's: no importance ratio may be made of them."""
    assert sum(branch.mask) == num_free
    assert branch.num_constrained_tokens > 0
    arrays = branch.tokens(1.0)
    arrays.check(0)
    assert all(value == 0 for value, m in zip(arrays.logprobs, arrays.mask, strict=True) if not m)
    assert sum(stop - start for _, start, stop in branch.versions) == num_free
    assert [turn.finish_reason != "" for turn in branch.turns].count(True) == 2


@pytest.mark.parametrize(
    ("options", "code", "param", "text"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}},
            "invalid_value", "response_format.json_schema.schema", "at #/type: 'objekt' is not valid",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "invalid_value", "response_format.json_schema.schema", "at #: not cannot be held to",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "missing_parameter", "response_format.json_schema.schema", "is missing",
        ),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", "Invalid enum value 'xml'"),
        (
            {"response_format": {"type": "json_object"}, "tools": TOOLS},
            "unsupported_parameter", "response_format", "cannot be a tool call",
        ),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice", "there are no tools"),
        ({"tool_choice": "always", "tools": TOOLS}, "invalid_value", "tool_choice", "must be auto"),
        (
            {"tool_choice": {"type": "function"}, "tools": TOOLS},
            "invalid_value", "tool_choice", "missing required field `function`",
        ),
        (
            {"tool_choice": "required", "tools": [{"type": "function", "function": {
                "name": "f", "parameters": {"properties": {"x": {"multipleOf": 2}}},
            }}]},
            "invalid_value", "tools.0.function.parameters", "at #/properties/x: multipleOf cannot be held to",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_held_to_is_refused(
    world: World, options: dict[str, Any], code: str, param: str, text: str
) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        world.open().chat.completions.create(model="policy", messages=ASK, **options)
    assert (bad.value.code, bad.value.param) == (code, param)
    assert text in str(bad.value)


def test_python_calls_cannot_be_forced(world: World) -> None:
    client = world.open(tool_format="python")
    with pytest.raises(openai.BadRequestError, match="python, cannot be forced: no grammar holds to it"):
        client.chat.completions.create(model="policy", messages=ASK, tools=TOOLS, tool_choice="required")


async def test_several_calls_are_read_as_they_were_held_to(tiny_model: Path) -> None:
    """Every format: the grammar takes what a model of it writes, and our own reader reads it."""
    written = {
        ToolFormat.HERMES: '<tool_call>\n{"name": "add", "arguments": %s}\n</tool_call>\n'
        '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
        ToolFormat.LLAMA: '{"name": "add", "parameters": %s}; {"name": "stop", "parameters": {}}',
        ToolFormat.MISTRAL: '[TOOL_CALLS] [{"name": "add", "arguments": %s}, {"name": "stop", "arguments": {}}]',
        ToolFormat.JSON: '[{"name": "add", "arguments": %s}, {"name": "stop", "arguments": {}}]',
    }
    template = load_template(tiny_model)
    grammars = Grammars(template._tokenizer, 100, [template.eos_id])
    tools = [ToolSpec(name=name, parameters=schema) for name, schema in BY_NAME.items()]
    for form, text in written.items():
        whole = text % '{"a": 1, "b": true}'
        for parallel in (True, False):
            held = call_constraint(form, tools, parallel=parallel)
            assert held is not None and held.kind is ConstraintKind.STRUCTURAL_TAG
            matcher = GrammarMatcher((await grammars.prepare([held]))[held], 100)
            taken = [matcher.accept(token) for token in [*template.encode(whole), template.eos_id]]
            assert all(taken) is parallel
        assert [call.name for call in read_calls(whole, form, BY_NAME).calls] == ["add", "stop"]


HELD: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "ab"}}}


@pytest.fixture
def scripted(tiny_model: Path, tmp_path: Path) -> Iterator[tuple[World, RecordingEngine]]:
    """An engine that ends the first part of each turn in an abort, as an update of the weights does."""
    template = load_template(tiny_model)
    parts = [Planned(template.encode('"x'), "abort"), Planned([*template.encode('"ab"'), template.eos_id])]
    engine = RecordingEngine(tiny_model, lambda _: parts[len(engine.served) % 2])
    server = make_server(tmp_path / "sessions", [engine])
    with served(make_app(server)) as url:
        made = World(url)
        yield made, engine
        for client in made.clients:
            client.close()
    server.close()


def requests_of(engine: RecordingEngine) -> list[GenerateRequest]:
    return [record.request for record in engine.served]


def test_a_part_that_is_cut_begins_again(scripted: tuple[World, RecordingEngine]) -> None:
    """What was sampled lies in the middle of the grammar, which no engine can be entered at."""
    world, engine = scripted
    answer = world.open(max_new_tokens=20).chat.completions.create(model="m", messages=ASK, response_format=HELD)
    assert answer.choices[0].message.content == '"ab"'
    first, second = requests_of(engine)
    assert first.constraint == second.constraint == Constraint(ConstraintKind.JSON_SCHEMA, '{"const": "ab"}')
    assert first.input_ids == second.input_ids
    assert first.sampling.max_new_tokens == second.sampling.max_new_tokens == 20
    assert first.sampling.seed != second.sampling.seed


def test_a_stream_that_is_cut_says_so(scripted: tuple[World, RecordingEngine]) -> None:
    world, _ = scripted
    stream = world.open().chat.completions.create(model="m", messages=ASK, response_format=HELD, stream=True)
    with pytest.raises(openai.APIError, match="cut short and cannot go on"):
        list(stream)
    assert world.trajectory().branches == []


async def test_a_session_that_was_read_again_still_masks(tiny_model: Path, tmp_path: Path) -> None:
    """The journal says which turns were held to something."""
    template = load_template(tiny_model)
    planned = Planned([*template.encode('"ab"'), template.eos_id])
    made: dict[str, Any] = {}
    for again in (False, True):
        engine = RecordingEngine(tiny_model, lambda _: planned)
        server = make_server(tmp_path / "sessions", [engine])
        transport = httpx.ASGITransport(make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
            if not again:
                made = (await client.post("/sessions", json={}, headers=OWNER)).json()
                body = {"model": "m", "messages": ASK, "response_format": HELD}
                headers = {"Authorization": f"Bearer {made['token']}"}
                answer = await client.post(f"{made['base_path']}/chat/completions", json=body, headers=headers)
                assert answer.json()["session"]["constrained"] is True
            found = (await client.get(f"/sessions/{made['id']}/trajectory", headers=OWNER)).json()
        server.close()
        await asyncio.sleep(0)
        (branch,) = found["branches"]
        assert (sum(branch["mask"]), branch["num_constrained_tokens"]) == (0, 5)
