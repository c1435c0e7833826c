"""A session's trajectory is an episode: the group file that the trainer reads holds exactly what was sampled."""

from pathlib import Path

import httpx
import msgspec
import numpy as np
import pytest

from gpu_workers.contracts.groups import decode_group, encode_group
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.runspec import AlgorithmSpec
from gpu_workers.contracts.seams import TrainGroup
from gpu_workers.contracts.tasks import Message
from gpu_workers.contracts.trajectories import Trajectory
from gpu_workers.sessions.chat import load_template
from gpu_workers.sessions.session import TokenSession
from gpu_workers.trainer.batches import assemble
from tests.sessions.world import OWNER, RecordingEngine, make_app, make_server, say

POLICY = PolicyRef(adapter="run-1.a1@v1", version=1)
TEXTS = ["Let me see.", "Five, I think."]


@pytest.fixture
async def trajectory(tiny_model: Path, tmp_path: Path) -> Trajectory:
    """Two turns, the first of them sampled twice."""
    engine = RecordingEngine(tiny_model, say(load_template(tiny_model), TEXTS[0], "Hm.", TEXTS[1]))
    server = make_server(tmp_path / "sessions", [engine])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(server)), base_url="http://s") as client:
        spec = {"policy": msgspec.to_builtins(POLICY)}
        made = (await client.post("/sessions", json=spec, headers=OWNER)).json()
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+3?"}]
        for num_choices, following in ((2, "So?"), (1, "")):
            body = {"model": "m", "messages": messages, "n": num_choices}
            headers = {"Authorization": f"Bearer {made['token']}"}
            answer = await client.post(f"{made['base_path']}/chat/completions", json=body, headers=headers)
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": following}]
        answer = await client.get(f"/sessions/{made['id']}/trajectory", params={"branch": "all"}, headers=OWNER)
    server.close()
    return msgspec.json.decode(answer.content, type=Trajectory)


async def test_it_is_what_a_rollout_worker_would_have_had(trajectory: Trajectory, tiny_model: Path) -> None:
    template = load_template(tiny_model)
    engine = RecordingEngine(tiny_model, say(template, *TEXTS))
    session = TokenSession(
        template, [Message(role="system", content="Be brief."), Message(role="user", content="2+3?")], POLICY
    )
    await session.generate_turn(engine, Sampling(), request_id="a")
    session.append([Message(role="user", content="So?")])
    await session.generate_turn(engine, Sampling(), request_id="b")
    main = trajectory.branches[0]
    assert main.ids == session.ids
    assert main.mask == session.mask
    assert [turn.role for turn in main.turns] == [turn.role for turn in session.turns]
    spans = [(turn.token_start, turn.token_stop) for turn in main.turns]
    assert spans == [(turn.token_start, turn.token_stop) for turn in session.turns]
    assert (main.tokens(None).versions == session.tokens(None).versions).all()


async def test_the_trainer_reads_the_same_tokens(trajectory: Trajectory) -> None:
    episodes = [branch.tokens(float(index), own_only=True) for index, branch in enumerate(trajectory.branches)]
    file = encode_group(episodes, {})
    for read, branch in zip(decode_group(file), trajectory.branches, strict=True):
        own = [m if at >= branch.shared_tokens else 0 for at, m in enumerate(branch.mask)]
        assert read.tokens.tolist() == branch.ids
        assert read.mask.tolist() == own
        assert (
            read.logprobs.tolist()
            == np.float32([p if m else 0 for p, m in zip(branch.logprobs, own, strict=True)]).tolist()
        )
        assert set(read.versions[read.mask == 1].tolist()) == {1}
    batch = assemble(
        [TrainGroup("g", 0, file)], AlgorithmSpec(), max_tokens=4096, context_length=1024, vocab_size=2**20
    )
    assert batch.skipped == {}
    behaviour = [p for branch in trajectory.branches for p, m in zip(branch.logprobs, branch.mask, strict=True) if m]
    assert batch.behaviour_S.tolist() == np.float32(behaviour).tolist()
    assert [row.tokens.tolist() for row in batch.sequences] == [branch.ids for branch in trajectory.branches]
