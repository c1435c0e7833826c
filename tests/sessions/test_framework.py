"""An agent framework (pydantic-ai), unmodified: its own tool loop in a session, with exact tokens behind it."""

from pathlib import Path

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from gpu_workers.contracts.trajectories import Trajectory
from gpu_workers.sessions.chat import load_template
from tests.sessions.world import OWNER, RecordingEngine, hermes, make_app, make_server, say, served


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_loop_is_one_branch(tiny_model: Path, tmp_path: Path, streamed: bool) -> None:
    template = load_template(tiny_model)
    both = hermes("add", a=2, b=3) + "\n" + hermes("add", a=4, b=5)  # two calls in one turn
    engine = RecordingEngine(
        tiny_model, say(template, both, hermes("absent", a=1), hermes("add", a=5, b=9), "It is 14.")
    )
    server = make_server(tmp_path / "sessions", [engine])
    asked: list[tuple[int, int]] = []

    with served(make_app(server)) as url:
        made = httpx.post(f"{url}/sessions", json={}, headers=OWNER).json()
        client = AsyncOpenAI(base_url=f"{url}{made['base_path']}", api_key=made["token"], max_retries=0)
        model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions="Use the tool.")

        @agent.tool_plain
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            asked.append((a, b))
            return a + b

        async with client:
            if streamed:
                async with agent.run_stream("What is 2+3+4+5?") as run:
                    output = await run.get_output()
            else:
                output = (await agent.run("What is 2+3+4+5?")).output
        answer = httpx.get(f"{url}/sessions/{made['id']}/trajectory", params={"branch": "all"}, headers=OWNER)
    server.close()
    assert output == "It is 14."
    assert sorted(asked) == [(2, 3), (4, 5), (5, 9)]
    (branch,) = msgspec.json.decode(answer.content, type=Trajectory).branches  # no fork: the framework edited nothing
    sampled = [token for token, m in zip(branch.ids, branch.mask, strict=True) if m]
    assert sampled == [token for record in engine.served for token in record.ids]
    for before, after in zip(engine.served, engine.served[1:], strict=False):
        whole = [*before.request.input_ids, *before.ids]
        assert list(after.request.input_ids)[: len(whole)] == whole
