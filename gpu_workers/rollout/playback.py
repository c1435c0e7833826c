"""Episodes whose turns come from a text instead of an engine: played in the real environment, judged as ever."""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import cast

from gpu_workers.contracts.groups import EpisodeRecord, ToolCallRecord, TurnRecord
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.seams import RolloutEngine
from gpu_workers.contracts.tasks import Message, TaskBundle
from gpu_workers.rollout.episode import EpisodeSetup, play_episode
from gpu_workers.rollout.group import GroupServices, environment_of
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.session import PolicyMoves, SampledTurn, TokenSession

GRACE_SECONDS = 30.0  # beside the task's own limits: sandbox starts


class TextSession(TokenSession):
    """A session without tokens: `next_turn` says what the policy writes next."""

    def __init__(self, prompt: Sequence[Message]) -> None:
        self.ids, self.mask, self.logprobs, self.versions = [], [], [], []
        self.num_prompt_tokens = 0
        self.messages = list(prompt)
        self.turns = [TurnRecord(role=message.role, text=message.content) for message in prompt]

    @abstractmethod
    def next_turn(self) -> TurnRecord:
        """The policy's next turn. Raises ContextFullError where it has no more to say."""

    async def generate_turn(
        self, engine: RolloutEngine, sampling: Sampling, *, request_id: str, moves: PolicyMoves | None = None
    ) -> SampledTurn:
        turn = self.next_turn()
        self.turns.append(turn)
        self.messages.append(Message(role="assistant", content=turn.text))
        return SampledTurn(turn.text, turn.finish_reason == "stop", turn.finish_reason, 0, 0.0, 0.0)

    def append(self, messages: Sequence[Message], tool_call: ToolCallRecord | None = None) -> None:
        self.messages.extend(messages)
        self.turns.extend(TurnRecord(role=m.role, text=m.content, tool_call=tool_call) for m in messages)

    def token_texts(self) -> list[str]:
        return []

    def version_range(self) -> tuple[int, int]:
        return 0, 0


async def play(
    task: TaskBundle, session: TextSession, services: GroupServices, *, index: int = 0, canary: str = ""
) -> EpisodeRecord:
    """One episode in an environment of its own, with its verdict. Raises WorkerError where the task is wrong.

    `canary`: of the stored episode that is played again, so that its decoys say the same.
    """
    limits = task.contract.limits
    allowed = limits.episode_timeout_seconds + 2 * limits.verify_timeout_seconds + GRACE_SECONDS
    setup = EpisodeSetup(
        task=task,
        template=cast(ChatTemplate, None),  # a TextSession renders nothing and asks no engine
        engine=cast(RolloutEngine, None),
        policy=PolicyRef(),
        sampling=Sampling(),
        verifier=services.verifier(task),
        deadline=asyncio.get_running_loop().time() + allowed,
        request_prefix="playback",
    )
    return (await play_episode(setup, environment_of(task, services, canary), session, index)).record
