"""Episodes played by somebody else's agent: it talks to a session, and its tokens become an episode like any other."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.seams import Environment, RolloutEngine, WorkerError
from gpu_workers.contracts.tasks import Message
from gpu_workers.contracts.trajectories import Branch, Trajectory
from gpu_workers.rollout.episode import Episode, EpisodeSetup, play_episode
from gpu_workers.serving.control import SECRET_HEADER
from gpu_workers.sessions.session import PolicyMoves, SampledTurn, TokenSession

STDERR_CHARACTERS = 2000
REQUEST_SECONDS = 30.0


@dataclass(frozen=True)
class AgentAccess:
    """What an agent is given: the prompt, and an OpenAI-compatible API of its own for this one episode."""

    base_url: str
    token: str
    prompt: Sequence[Message]


Agent = Callable[[AgentAccess], Awaitable[None]]  # raises WorkerError where it broke


@dataclass(frozen=True)
class SessionClient:
    """Sessions of a server as their owner. Raises WorkerError(INFRASTRUCTURE)."""

    url: str
    secret: str
    client: httpx.AsyncClient

    async def open(self, policy: PolicyRef, sampling: Sampling, label: str = "") -> tuple[str, str]:
        """Id and token. What the trainer assumes of the sampling is not the agent's to choose."""
        spec = {
            "policy": msgspec.to_builtins(policy),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
            "seed": sampling.seed,
            "label": label,
        }
        made = msgspec.json.decode(await self._send("POST", "", json=spec))
        return made["id"], made["token"]

    async def trajectory(self, session_id: str, branch: str = "main") -> Trajectory:
        data = await self._send("GET", f"/{session_id}/trajectory", params={"branch": branch})
        return msgspec.json.decode(data, type=Trajectory)

    async def move(self, session_id: str, policy: PolicyRef) -> None:
        await self._send("PUT", f"/{session_id}/policy", json=msgspec.to_builtins(policy))

    async def delete(self, session_id: str) -> None:
        await self._send("DELETE", f"/{session_id}")

    async def _send(self, method: str, path: str, **options: object) -> bytes:
        url = f"{self.url.rstrip('/')}/sessions{path}"
        headers = {SECRET_HEADER: self.secret}
        try:
            answer = await self.client.request(method, url, headers=headers, timeout=REQUEST_SECONDS, **options)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            raise WorkerError(Boundary.INFRASTRUCTURE, f"{url}: {error or type(error).__name__}") from error
        if answer.is_error:
            raise WorkerError(Boundary.INFRASTRUCTURE, f"{method} {url}: {answer.status_code} {answer.text[:500]}")
        return answer.content


class AgentSession(TokenSession):
    """A session whose one `turn` is the whole agent: afterwards it holds the main branch of what the agent did."""

    def __init__(self, prompt: Sequence[Message], policy: PolicyRef, play: Callable[[], Awaitable[Branch]]) -> None:
        self.ids, self.mask, self.logprobs, self.versions = [], [], [], []
        self.messages, self.turns, self.num_prompt_tokens = list(prompt), [], 0
        self._policy, self._play = policy, play

    async def generate_turn(
        self, engine: RolloutEngine, sampling: Sampling, *, request_id: str, moves: PolicyMoves | None = None
    ) -> SampledTurn:
        branch = await self._play()
        arrays = branch.tokens(None)
        self.ids, self.mask, self.logprobs = branch.ids, branch.mask, branch.logprobs
        self.versions, self.turns = arrays.versions.tolist(), branch.turns
        self.messages = [Message(role=turn.role, content=turn.text) for turn in branch.turns]
        self.num_prompt_tokens = branch.num_prompt_tokens
        last = branch.turns[-1]
        finish, seconds = last.finish_reason, sum(turn.engine_seconds for turn in branch.turns)
        return SampledTurn(last.text, finish == "stop", finish, sum(branch.mask), seconds, 0.0)

    def token_texts(self) -> list[str]:
        """None: the tokenizer is the server's."""
        return []


async def run_agent_episode(
    setup: EpisodeSetup, environment: Environment, sessions: SessionClient, agent: Agent, index: int
) -> Episode:
    """As `run_episode`, with the agent's own loop and tools instead of ours. `environment` is what the verdict is of.

    The session is deleted afterwards; branches beside the main one are not trained on.
    """
    prompt = setup.task.conversation(setup.policy.num_shots)
    sampling = msgspec.structs.replace(setup.sampling, seed=setup.sampling.seed + index)

    async def play() -> Branch:
        session_id, token = await sessions.open(setup.policy, sampling, f"{setup.request_prefix}.{index}")
        try:
            base_url = f"{sessions.url.rstrip('/')}/sessions/{session_id}/v1"
            await agent(AgentAccess(base_url=base_url, token=token, prompt=prompt))
            branches = (await sessions.trajectory(session_id)).branches
        finally:
            with contextlib.suppress(WorkerError):  # then it expires
                await sessions.delete(session_id)
        if not branches:
            raise WorkerError(Boundary.ENVIRONMENT, "the agent ended without a turn of the policy", retryable=False)
        return branches[0]

    # Whatever the last turn says is the answer: tools are the agent's, and what it did not call is no call.
    task = msgspec.structs.replace(setup.task, tools=[], tool_servers=[])
    own = dataclasses.replace(setup, task=task)
    return await play_episode(own, environment, AgentSession(prompt, setup.policy, play), index)


def program_agent(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Agent:
    """An agent that is a program: OPENAI_BASE_URL and OPENAI_API_KEY in its environment, the messages as JSON on stdin.

    It runs as this process's user, outside any sandbox: only for programs that the operator trusts.
    """

    async def play(access: AgentAccess) -> None:
        values = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        values |= dict(environment or {}) | {"OPENAI_BASE_URL": access.base_url, "OPENAI_API_KEY": access.token}
        messages = [{"role": message.role, "content": message.content} for message in access.prompt]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=asyncio.subprocess.DEVNULL, stderr=pipe, env=values, start_new_session=True
        )
        try:
            _, said = await process.communicate(json.dumps(messages).encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode:
            tail = said.decode(errors="replace")[-STDERR_CHARACTERS:]
            raise WorkerError(
                Boundary.ENVIRONMENT, f"the agent ended with {process.returncode}: {tail}", retryable=False
            )

    return play
