"""OpenAI's own client, unmodified, against the session server on a real socket."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from gpu_workers.contracts.trajectories import Branch, Trajectory
from gpu_workers.sessions.chat import load_template
from tests.sessions.world import OWNER, RecordingEngine, hermes, make_app, make_server, say, served

ASK: list[Any] = [{"role": "user", "content": "What is 2+3?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calc",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]


class World:
    """A running server, its engine, and an agent's client of a new session."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.engine = RecordingEngine(model, say(load_template(model), "Five."))
        self.server = make_server(folder, [self.engine])
        self.url = ""
        self.clients: list[OpenAI] = []

    def open(self, **spec: Any) -> OpenAI:
        answer = httpx.post(f"{self.url}/sessions", json=spec, headers=OWNER)
        assert answer.status_code == 201
        made = answer.json()
        self.id = made["id"]
        self.clients.append(OpenAI(base_url=f"{self.url}{made['base_path']}", api_key=made["token"], max_retries=0))
        return self.clients[-1]

    def says(self, *texts: str) -> None:
        self.engine.plan = say(self.engine.template, *texts)

    def trajectory(self, branch: str = "all") -> Trajectory:
        import msgspec

        answer = httpx.get(f"{self.url}/sessions/{self.id}/trajectory", params={"branch": branch}, headers=OWNER)
        assert answer.status_code == 200
        return msgspec.json.decode(answer.content, type=Trajectory)

    def sampled(self, branch: Branch) -> list[int]:
        return [token for token, m in zip(branch.ids, branch.mask, strict=True) if m]


@pytest.fixture
def world(tiny_model: Path, tmp_path: Path) -> Iterator[World]:
    yield from running(tiny_model, tmp_path)


def running(model: Path, tmp_path: Path) -> Iterator[World]:
    made = World(model, tmp_path / "sessions")
    with served(make_app(made.server)) as url:
        made.url = url
        yield made
        for client in made.clients:
            client.close()
    made.server.close()


def test_a_whole_answer(world: World) -> None:
    client = world.open(policy={"adapter": "run-1.a1@v1", "version": 1})
    answer = client.chat.completions.create(model="policy", messages=ASK, temperature=0.5, seed=7, logprobs=True)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Five.", "stop")
    assert answer.system_fingerprint == "run-1.a1@v1@1"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert answer.choices[0].logprobs is not None
    shown = answer.choices[0].logprobs.content or []
    assert "".join(token.token for token in shown) == "Five.<|im_end|>"
    (sent,) = world.engine.served
    assert [token.logprob for token in shown] == sent.logprobs
    assert (sent.request.sampling.temperature, sent.request.sampling.seed) == (0.5, 7)
    assert sent.request.adapter == "run-1.a1@v1"
    assert [model.id for model in client.models.list()] == ["policy"]


@pytest.fixture
def smollm2_world(smollm2_model: Path, tmp_path: Path) -> Iterator[World]:
    yield from running(smollm2_model, tmp_path)


def test_a_stream_and_its_usage(smollm2_world: World) -> None:
    world = smollm2_world
    client = world.open()
    world.says("Fünf 🙂 — naïve. " * 3)
    stream = client.chat.completions.create(
        model="policy", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "Fünf 🙂 — naïve. " * 3
    assert world.trajectory().branches[0].turns[-1].text == "".join(texts)
    assert not any("\ufffd" in text for text in texts)
    assert len([text for text in texts if text]) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(world.engine.served[0].ids)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_call_and_its_result_extend_the_exact_prefix(world: World, streamed: bool) -> None:
    client = world.open()
    world.says("Let me see.\n" + hermes("calc", expression="2+3"), "Five.")
    messages = [*ASK]
    if streamed:
        with client.chat.completions.stream(model="policy", messages=messages, tools=TOOLS) as stream:
            message: Any = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("calc", {"expression": "2+3"})
    assert message.content == "Let me see."
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    last = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
    assert last.choices[0].message.content == "Five."
    first, second = world.engine.served
    suffix = list(second.request.input_ids)[len(first.request.input_ids) + len(first.ids) :]
    assert list(second.request.input_ids) == [*first.request.input_ids, *first.ids, *suffix]
    assert "".join(world.engine.template.token_texts(suffix)) == (
        "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"
    )
    (branch,) = world.trajectory().branches
    assert world.sampled(branch) == first.ids + second.ids
    assert [turn.role for turn in branch.turns] == ["user", "assistant", "tool", "assistant"]


def test_several_choices_are_branches_and_any_of_them_goes_on(world: World) -> None:
    client = world.open()
    world.says("One.", "Two.", "Three.", "Good.")
    answer = client.chat.completions.create(model="policy", messages=ASK, n=3)
    assert [choice.message.content for choice in answer.choices] == ["One.", "Two.", "Three."]
    seeds = {record.request.sampling.seed for record in world.engine.served}
    assert len(seeds) == 3
    messages = [*ASK, {"role": "assistant", "content": "Two."}, {"role": "user", "content": "And?"}]
    client.chat.completions.create(model="policy", messages=messages)
    trajectory = world.trajectory()
    assert len(trajectory.branches) == len(trajectory.forks) == 3
    main = trajectory.branches[0]
    assert world.sampled(main) == world.engine.served[1].ids + world.engine.served[3].ids
    assert [branch.main for branch in trajectory.branches] == [True, False, False]
    prompt = len(world.engine.served[0].request.input_ids)
    assert [branch.shared_tokens for branch in trajectory.branches] == [0, prompt, prompt]


def test_choices_stream_side_by_side(world: World) -> None:
    client = world.open()
    world.says("One.", "Two.")
    texts = {0: "", 1: ""}
    for chunk in client.chat.completions.create(model="policy", messages=ASK, n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "One.", 1: "Two."}


def test_stop_texts_and_length(world: World) -> None:
    client = world.open()
    world.says("Five is it, I think.")
    stopped = client.chat.completions.create(model="policy", messages=ASK, stop=[" it"])
    assert stopped.choices[0].message.content == "Five is"
    short = client.chat.completions.create(model="policy", messages=ASK, max_tokens=4)
    assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("Five", "length")
    streamed = client.chat.completions.create(model="policy", messages=ASK, stop=" it", stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == "Five is"
    messages = [*ASK, {"role": "assistant", "content": "Five"}, {"role": "user", "content": "Go on."}]
    client.chat.completions.create(model="policy", messages=messages)
    cut, last = world.engine.served[1], world.engine.served[-1]
    prefix = [*cut.request.input_ids, *cut.ids, world.engine.template.eos_id]
    assert list(last.request.input_ids)[: len(prefix)] == prefix
    assert world.trajectory("main").branches[0].mask[len(prefix) - 1] == 0


def test_the_sessions_sampling_wins_over_the_agents(world: World) -> None:
    client = world.open(temperature=1.0, top_p=0.9, max_new_tokens=3, seed=11)
    client.chat.completions.create(model="gpt-4o", messages=ASK, temperature=0, top_p=0.1, max_completion_tokens=500)
    sampling = world.engine.served[0].request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens, sampling.seed) == (1.0, 0.9, 3, 11)


def test_refusals_are_the_clients_own_errors(world: World) -> None:
    client = world.open()
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="policy", messages=ASK, presence_penalty=0.5)
    assert (bad.value.code, bad.value.param) == ("unsupported_parameter", "presence_penalty")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(model="policy", messages=ASK)
    world.engine.down = True
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="policy", messages=ASK)
    world.engine.down = False
    httpx.delete(f"{world.url}/sessions/{world.id}", headers=OWNER)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="policy", messages=ASK)


async def test_the_async_client_and_many_sessions_at_once(world: World) -> None:
    import asyncio

    clients = [world.open() for _ in range(8)]

    async def play(client: OpenAI) -> str | None:
        own = openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)
        async with own:
            answer = await own.chat.completions.create(model="policy", messages=ASK)
        return answer.choices[0].message.content

    assert await asyncio.gather(*map(play, clients)) == ["Five."] * 8
