"""Turns that are left, overlap, are cut by new weights, or meet an engine that dies."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_workers.contracts.seams import GenerateRequest
from gpu_workers.sessions.chat import load_template
from gpu_workers.sessions.limits import SessionLimits
from tests.sessions.world import OWNER, Planned, RecordingEngine, make_app, make_server, say, served, wait_until

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATIENCE = 60.0


class World:
    """A server on a socket, so that a client can really go away."""

    def __init__(self, model: Path, folder: Path, num_engines: int = 1) -> None:
        template = load_template(model)
        self.engines = [RecordingEngine(model, say(template, "Five.")) for _ in range(num_engines)]
        self.engine = self.engines[0]
        self.server = make_server(folder, self.engines, max_running=2)
        self.url = ""

    async def open(self, client: httpx.AsyncClient, **spec: Any) -> None:
        made = (await client.post(f"{self.url}/sessions", json=spec, headers=OWNER)).json()
        self.path = f"{self.url}/sessions/{made['id']}"
        self.headers = {"Authorization": f"Bearer {made['token']}"}

    async def ask(self, client: httpx.AsyncClient, **change: Any) -> httpx.Response:
        return await client.post(f"{self.path}/v1/chat/completions", json=ASK | change, headers=self.headers)

    async def trajectory(self, client: httpx.AsyncClient) -> dict[str, Any]:
        answer = await client.get(f"{self.path}/trajectory", params={"branch": "all"}, headers=OWNER)
        body: dict[str, Any] = answer.json()
        return body

    async def is_idle(self, client: httpx.AsyncClient) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await client.get(self.path, headers=OWNER)).json()["num_running"]:
                await asyncio.sleep(0.01)

    async def holds(self, num: int = 1) -> None:
        """Until that many requests wait in the engine."""
        await asyncio.to_thread(
            wait_until, lambda: sum(len(record.ids) == self.engine.hold_after for record in self.engine.served) >= num
        )


@pytest.fixture
def world(tiny_model: Path, tmp_path: Path) -> Iterator[World]:
    made = World(tiny_model, tmp_path / "sessions")
    with served(make_app(made.server)) as url:
        made.url = url
        yield made
    made.server.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_that_its_agent_left_is_an_aborted_branch(world: World, stream: bool) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        world.engine.hold_after = 3
        asking = asyncio.create_task(world.ask(client, stream=stream))
        await world.holds()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.is_idle(client)
        world.engine.release.set()
        assert (await world.ask(client)).status_code == 200  # the retry
        body = await world.trajectory(client)
    left, again = world.engine.served
    assert [branch["finish_reason"] for branch in body["branches"]] == ["stop", "abort"]
    assert body["branches"][0]["ids"] == [*again.request.input_ids, *again.ids]
    assert body["branches"][1]["ids"] == [*left.request.input_ids, *left.ids]
    assert len(left.ids) == 3
    if not stream:
        assert world.engine.aborted == [left.request.request_id]


async def test_overlapping_turns_are_branches_in_the_order_of_their_arrival(world: World) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        world.engine.plan = say(world.engine.template, "One.", "Two.")
        world.engine.hold_after = 2
        first = asyncio.create_task(world.ask(client))
        await world.holds(1)
        second = asyncio.create_task(world.ask(client))
        await world.holds(2)
        third = await world.ask(client)
        assert (third.status_code, third.json()["error"]["code"]) == (429, "too_many_turns")
        world.engine.release.set()
        answers = [(await asking).json() for asking in (first, second)]
        body = await world.trajectory(client)
    assert [answer["session"]["turn"] for answer in answers] == [0, 1]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["One.", "Two."]
    assert body["branches"][0]["turns"][-1]["text"] == "Two."  # the newest
    assert [branch["shared_tokens"] for branch in body["branches"]] == [
        0,
        len(world.engine.served[0].request.input_ids),
    ]


async def test_running_turns_count_with_the_most_they_may_add(world: World) -> None:
    """Side by side they cannot bring a session over its bound; a turn that ends gives back what it did not need."""
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        limits = SessionLimits(max_session_tokens=300, max_running=3)
        world.server.table.limits = limits
        world.engine.hold_after = 2
        first = asyncio.create_task(world.ask(client, max_tokens=200))
        await world.holds(1)
        second = asyncio.create_task(world.ask(client, max_tokens=200))
        await world.holds(2)
        third = await world.ask(client, max_tokens=200)
        assert (third.status_code, third.json()["error"]["code"]) == (429, "too_many_turns")
        assert "running turns may add" in third.json()["error"]["message"]
        assert sum(record.request.sampling.max_new_tokens for record in world.engine.served) < 300
        world.engine.release.set()
        assert [(await asking).status_code for asking in (first, second)] == [200, 200]
        assert (await world.ask(client, max_tokens=200)).status_code == 200
    assert world.server.table.num_promised == 0


async def test_deleting_a_session_ends_its_turns(world: World) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        world.engine.hold_after = 2
        asking = asyncio.create_task(world.ask(client))
        await world.holds()
        assert (await client.delete(world.path, headers=OWNER)).status_code == 204
        answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
    assert len(world.engine.aborted) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_new_weights_in_mid_turn_leave_a_span_for_each_version(world: World, stream: bool) -> None:
    """The engine aborts for an update: the turn goes on behind what was sampled, and every token keeps its version."""
    template = world.engine.template
    parts = [
        Planned(template.encode("Fi"), "abort", version=3),
        Planned([], "abort", version=4),
        Planned([*template.encode("ve."), template.eos_id], "stop", version=4),
    ]
    world.engine.plan = lambda request: parts.pop(0)
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        answer = await world.ask(client, stream=stream)
        assert answer.status_code == 200
        (branch,) = (await world.trajectory(client))["branches"]
    prompt = branch["num_prompt_tokens"]
    assert branch["versions"] == [[3, prompt, prompt + 2], [4, prompt + 2, prompt + 6]]
    assert branch["turns"][-1]["text"] == "Five."
    first, _, last = world.engine.served
    assert list(last.request.input_ids) == [*first.request.input_ids, *first.ids]
    assert len({record.request.sampling.seed for record in world.engine.served}) == 3


async def test_a_session_moves_to_another_policy_between_turns(world: World) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client, policy={"adapter": "run-1.a1@v1", "version": 1})
        said = (await world.ask(client)).json()["choices"][0]["message"]
        policy = {"adapter": "run-1.a1@v2", "version": 2}
        assert (await client.put(f"{world.path}/policy", json=policy, headers=OWNER)).status_code == 200
        await world.ask(client, messages=[*ASK["messages"], said, {"role": "user", "content": "more"}])
        (branch,) = (await world.trajectory(client))["branches"]
    assert [record.request.adapter for record in world.engine.served] == ["run-1.a1@v1", "run-1.a1@v2"]
    assert [span[0] for span in branch["versions"]] == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_dies_hands_the_turn_to_another(tiny_model: Path, tmp_path: Path, stream: bool) -> None:
    world = World(tiny_model, tmp_path / "sessions", num_engines=2)
    with served(make_app(world.server)) as url:
        world.url = url
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            for down in world.engines:
                for engine in world.engines:
                    engine.down = engine is down
                await world.open(client)
                answer = await world.ask(client, stream=stream)
                assert "engine_error" not in answer.text
                assert answer.status_code == 200
            for engine in world.engines:
                engine.down = True
            refused = await world.ask(client)
    world.server.close()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_log_probs_is_refused_and_not_kept(world: World, stream: bool) -> None:
    result = world.engine._result

    def broken(record: Any, finish: str) -> Any:
        made = result(record, finish)
        made.logprobs.pop()
        return made

    world.engine._result = broken  # type: ignore[method-assign]
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        answer = await world.ask(client, stream=stream)
        assert '"engine_error"' in answer.text
        assert (await world.trajectory(client))["branches"] == []


async def test_one_choice_that_fails_fails_the_turn(world: World) -> None:
    template = world.engine.template

    def plan(request: GenerateRequest) -> Planned:
        return Planned([*template.encode("x"), template.eos_id]) if request.request_id.endswith("0.0") else Planned([])

    world.engine.plan = plan
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        await world.open(client)
        answer = await world.ask(client, n=2)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_error")
        assert (await world.trajectory(client))["branches"] == []
