"""Sessions over a real SGLang: OpenAI's client, the session server, exact tokens, answers held to a schema."""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gpu_workers.contracts.constraints import Constraint, ConstraintKind
from gpu_workers.contracts.messages import Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult
from gpu_workers.contracts.trajectories import Trajectory
from gpu_workers.engines.http import EngineError
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.serving.session_server import SessionServer
from gpu_workers.sessions.chat import load_template
from gpu_workers.sessions.limits import SessionLimits
from tests.sessions.world import OWNER, SECRET, make_app, served
from tests.unit.gpu_workers.engines.serving import serving

ASK: list[Any] = [{"role": "user", "content": "Name an animal."}]
TOLERANCE = 2e-4  # float32 on both sides, sums in another order
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]},
    },
}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    tame: bool


class Watched(SGLangEngine):
    """Keeps what the server was asked and what it answered."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seen: list[tuple[GenerateRequest, GenerateResult]] = []

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        result = await super().generate(request)
        self.seen.append((request, result))
        return result

    async def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]:
        last = None
        async for result in super().stream(request):
            last = result
            yield result
        assert last is not None
        self.seen.append((request, last))


class World:
    def __init__(self, url: str, engine: Watched) -> None:
        self.url, self.engine = url, engine
        made = httpx.post(f"{url}/sessions", json={"temperature": 1.0, "max_new_tokens": 48}, headers=OWNER).json()
        self.id = made["id"]
        self.client = OpenAI(base_url=f"{url}{made['base_path']}", api_key=made["token"], max_retries=0, timeout=240)

    def trajectory(self) -> Trajectory:
        answer = httpx.get(f"{self.url}/sessions/{self.id}/trajectory", headers=OWNER)
        return msgspec.json.decode(answer.content, type=Trajectory)


def closing(engine: SGLangEngine) -> Callable[[Request], Awaitable[Response]]:
    async def close(_: Request) -> Response:
        await engine.close()
        return Response()

    return close


@pytest.fixture
def world(smollm2: Path, sglang_url: str, tmp_path: Path) -> Iterator[World]:
    engine = Watched(sglang_url)
    server = SessionServer(tmp_path / "sessions", [engine], smollm2.parent, SECRET, SessionLimits())
    app = make_app(server)
    app.router.routes.append(Route("/close", closing(engine)))
    with served(app) as url:
        made = World(url, engine)
        yield made
        made.client.close()
        httpx.get(f"{url}/close")
    server.close()


def test_a_conversation_keeps_the_very_ids_that_sglang_sampled(world: World) -> None:
    chat = world.client.chat.completions
    first = chat.create(model="policy", messages=ASK, max_tokens=16).choices[0].message
    messages: list[Any] = [*ASK, first, {"role": "user", "content": "Another."}]
    streamed = list(chat.create(model="policy", messages=messages, max_tokens=16, stream=True))
    (branch,) = world.trajectory().branches
    (one, answer), (two, other) = world.engine.seen
    assert list(two.input_ids[: len(one.input_ids) + len(answer.output_ids)]) == [*one.input_ids, *answer.output_ids]
    assert branch.ids == [*two.input_ids, *other.output_ids]
    sampled = [index for index, m in enumerate(branch.mask) if m]
    assert [branch.ids[index] for index in sampled] == [*answer.output_ids, *other.output_ids]
    assert [branch.logprobs[index] for index in sampled] == [*answer.logprobs, *other.logprobs]
    assert all(math.isfinite(value) and value <= 0 for value in branch.logprobs)
    assert any(branch.logprobs[index] < -1e-4 for index in sampled)
    branch.tokens(1.0).check(0)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert text.strip() == load_template(Path(world.trajectory().model_path)).decode(other.output_ids).strip()


def test_an_answer_of_a_pydantic_model_is_not_trained_on(world: World) -> None:
    answer = world.client.chat.completions.parse(model="policy", messages=ASK, response_format=Animal)
    choice = answer.choices[0]
    assert choice.finish_reason == "length" or isinstance(choice.message.parsed, Animal)
    (branch,) = world.trajectory().branches
    assert (sum(branch.mask), branch.num_constrained_tokens) == (0, len(world.engine.seen[0][1].output_ids))


def test_a_call_can_be_forced(world: World) -> None:
    answer = world.client.chat.completions.create(
        model="policy", messages=ASK, tools=[ADD], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments)["a"] in (1, 2)


def test_a_wrong_schema_is_refused(world: World) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}
    with pytest.raises(openai.BadRequestError, match="at #/type"):
        world.client.chat.completions.create(model="policy", messages=ASK, response_format=wanted)


async def test_both_engines_hold_alike_and_report_alike(smollm2: Path, sglang_url: str) -> None:
    """Greedy under the same constraint: the same ids, and log-probs of the constrained distribution on both sides."""
    prompt = tuple(load_template(smollm2).encode("The animal is a"))
    with serving(smollm2, "--dtype", "float32", "--max-loras", "1") as (url, _):
        ours, theirs = SGLangEngine(url), SGLangEngine(sglang_url)
        held = [
            Constraint(ConstraintKind.REGEX, " (cat|dog|zebra)s?"),
            Constraint(ConstraintKind.JSON_SCHEMA, '{"enum": ["cat", "dog"]}'),
            Constraint(ConstraintKind.EBNF, 'root ::= " " ("big" | "small") root | " dog"'),
        ]
        for constraint in held:
            request = GenerateRequest(prompt, Sampling(max_new_tokens=12, temperature=0.0), constraint=constraint)
            mine, other = await ours.generate(request), await theirs.generate(request)
            assert mine.output_ids == other.output_ids
            assert mine.finish_reason == other.finish_reason
            assert mine.logprobs == pytest.approx(other.logprobs, abs=TOLERANCE)
        wrong = GenerateRequest(prompt, Sampling(max_new_tokens=4), constraint=Constraint(ConstraintKind.REGEX, "[a-z"))
        for engine in (ours, theirs):
            with pytest.raises(EngineError) as refused:
                await engine.generate(wrong)
            assert (refused.value.status, refused.value.retryable) == (400, False)
            await engine.close()
