"""An agent program that knows nothing of Ratchet plays episodes; they are judged, stored and read by the trainer."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from gpu_workers.contracts.enums import Boundary, StopReason, VerifierKind
from gpu_workers.contracts.groups import SandboxRecord, ToolCallRecord, encode_group
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.runspec import AlgorithmSpec
from gpu_workers.contracts.seams import GenerateRequest, TrainGroup, WorkerError
from gpu_workers.contracts.tasks import Message, TaskBundle, VerifierSpec
from gpu_workers.rollout.episode import EpisodeSetup
from gpu_workers.rollout.external import Agent, AgentAccess, SessionClient, program_agent, run_agent_episode
from gpu_workers.sessions.chat import load_template
from gpu_workers.trainer.batches import assemble
from tests.sessions.world import SECRET, Planned, RecordingEngine, hermes, make_app, make_server, served
from tests.unit.gpu_workers.rollout.scripted import AnswerVerifier

PROGRAM = """
import json, sys
from openai import OpenAI

messages = json.load(sys.stdin)
function = {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}
with OpenAI(max_retries=0) as client:
    while True:
        message = client.chat.completions.create(
            model="gpt-4o", temperature=0, messages=messages, tools=[{"type": "function", "function": function}]
        ).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            given = json.loads(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
"""
TASK = TaskBundle(
    key="t", prompt=[Message(role="user", content="Is 2+3 5?")], verifier=VerifierSpec(kind=VerifierKind.EXACT)
)


class Nothing:
    """An environment without files: the agent's tools are its own."""

    record = SandboxRecord()

    async def reset(self) -> None:
        return

    async def step(self, name: str, arguments: dict[str, object]) -> ToolCallRecord:
        raise AssertionError("the agent calls its own tools")

    async def state(self) -> dict[str, bytes]:
        return {}

    async def close(self) -> None:
        return


class World:
    def __init__(self, model: Path, folder: Path) -> None:
        self.template = load_template(model)
        self.engine = RecordingEngine(model, self.plan)
        self.server = make_server(folder, [self.engine])

    def plan(self, request: GenerateRequest) -> Planned:
        """One call, then an answer that depends on the episode's seed."""
        text = hermes("add", a=2, b=3)
        if "tool\n5" in self.template.decode(request.input_ids):
            text = "yes" if request.sampling.seed % 1_000_003 % 2 else "no"
        return Planned([*self.template.encode(text), self.template.eos_id])

    def setup(self, seconds: float = 120.0) -> EpisodeSetup:
        return EpisodeSetup(
            task=TASK,
            template=self.template,
            engine=self.engine,
            policy=PolicyRef(adapter="run-1.a1@v1", version=1),
            sampling=Sampling(max_new_tokens=128, temperature=1.0, seed=100),
            verifier=AnswerVerifier(),
            deadline=asyncio.get_running_loop().time() + seconds,
            request_prefix="g.1",
        )


@pytest.fixture
async def world(tiny_model: Path, tmp_path: Path) -> AsyncIterator[World]:
    made = World(tiny_model, tmp_path / "sessions")
    with served(make_app(made.server)) as url:
        async with httpx.AsyncClient() as client:
            made.sessions = SessionClient(url, SECRET, client)
            yield made
    made.server.close()


async def test_its_episodes_are_judged_and_trained_on(world: World) -> None:
    agent = program_agent([sys.executable, "-c", PROGRAM], {"PYTHONPATH": ":".join(sys.path)})
    episodes = await asyncio.gather(
        *(run_agent_episode(world.setup(), Nothing(), world.sessions, agent, index) for index in range(2))
    )
    assert [episode.record.stop_reason for episode in episodes] == [StopReason.ANSWERED] * 2
    assert [(e.record.answer, e.record.reward) for e in episodes] == [("no", 0.0), ("yes", 1.0)]
    for episode in episodes:
        record = episode.record
        assert [turn.role for turn in record.turns] == ["user", "assistant", "tool", "assistant"]
        assert (record.num_turns, record.min_version, record.max_version) == (2, 1, 1)
        assert record.num_total_tokens == len(episode.session.ids)
    temperatures = {served.request.sampling.temperature for served in world.engine.served}
    assert temperatures == {1.0}  # the trainer's, whatever the agent asked for

    file = encode_group([episode.session.tokens(episode.record.reward) for episode in episodes], {})
    batch = assemble(
        [TrainGroup("g", 0, file)], AlgorithmSpec(), max_tokens=4096, context_length=1024, vocab_size=2**20
    )
    assert batch.skipped == {}
    for index, sequence in enumerate(batch.sequences):
        given = [part for part in world.engine.served if part.request.sampling.seed % 1_000_003 == 100 + index]
        assert sequence.tokens[sequence.mask == 1].tolist() == [token for part in given for token in part.ids]
        behaviour = batch.behaviour_S[batch.start_E[index] : batch.start_E[index + 1]]
        assert behaviour.tolist() == np.float32([p for part in given for p in part.logprobs]).tolist()
        last = given[-1]
        assert sequence.tokens.tolist() == [*last.request.input_ids, *last.ids]
    assert world.server.table.num_sessions == 0


async def test_an_agent_that_breaks_or_hangs_has_no_reward(world: World) -> None:
    async def silent(access: AgentAccess) -> None:
        return

    async def hangs(access: AgentAccess) -> None:
        await asyncio.Event().wait()

    async def record(agent: Agent, seconds: float = 120.0) -> tuple[Boundary | None, float | None, str]:
        episode = await run_agent_episode(world.setup(seconds), Nothing(), world.sessions, agent, 0)
        return episode.record.boundary, episode.record.reward, episode.record.message

    broken = await record(program_agent([sys.executable, "-c", "raise SystemExit('out of cheese')"]))
    assert broken[:2] == (Boundary.ENVIRONMENT, None)
    assert "out of cheese" in broken[2]
    assert (await record(silent))[:2] == (Boundary.ENVIRONMENT, None)
    assert (await record(hangs, 0.5))[1] is None
    assert world.server.table.num_sessions == 0


async def test_a_server_that_is_gone_is_infrastructure(world: World) -> None:
    gone = SessionClient("http://127.0.0.1:9", SECRET, world.sessions.client)
    with pytest.raises(WorkerError) as caught:
        await gone.open(PolicyRef(), Sampling())
    assert caught.value.boundary is Boundary.INFRASTRUCTURE
    wrong = SessionClient(world.sessions.url, "wrong", world.sessions.client)
    with pytest.raises(WorkerError, match="401"):
        await wrong.open(PolicyRef(), Sampling())
