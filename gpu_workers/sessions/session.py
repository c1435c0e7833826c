"""One conversation as exact tokens: what was sampled is kept id by id and never re-encoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import ToolCallRecord, TurnRecord
from gpu_workers.contracts.messages import PolicyRef, Sampling
from gpu_workers.contracts.seams import GenerateRequest, GenerateResult, RolloutEngine, WorkerError
from gpu_workers.contracts.tasks import Message
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.sessions.tokens import TokenArrays, check_lengths, versions_of

TURN_SEED_STRIDE = 1_000_003  # turns of one episode draw from different seeds
PART_SEED_STRIDE = 7_368_787  # and so do the parts of a turn that versions share


class ContextFullError(RuntimeError):
    """The conversation has reached the model's context; nothing more can be sampled."""


@dataclass(frozen=True)
class SampledTurn:
    """One assistant turn. `complete`: the policy ended it itself."""

    text: str
    complete: bool
    finish_reason: str
    num_tokens: int
    engine_seconds: float
    queue_seconds: float


class PolicyMoves(Protocol):
    """The newest version of the policy, and an engine's answer that is cut short when it changes."""

    policy: PolicyRef

    async def generate(self, engine: RolloutEngine, request: GenerateRequest) -> GenerateResult: ...


class TokenSession(TokenArrays):
    """Grows by sampled turns and appended messages only."""

    def __init__(
        self, template: ChatTemplate, prompt: Sequence[Message], policy: PolicyRef, *, context_limit: int | None = None
    ) -> None:
        super().__init__()
        self._template = template
        self._policy = policy
        self._limit = min(context_limit or template.context_limit, template.context_limit)
        self._sent: tuple[int, ...] = ()
        self.messages: list[Message] = list(prompt)
        self.turns: list[TurnRecord] = []
        self.extend_observed(template.render_prompt(prompt))
        self.num_prompt_tokens = len(self.ids)
        self.turns.extend(
            TurnRecord(role=m.role, text=m.content, token_start=0, token_stop=self.num_prompt_tokens) for m in prompt
        )

    @classmethod
    def grown(cls, template: ChatTemplate, policy: PolicyRef, num_prompt_tokens: int) -> "TokenSession":
        """An empty one, for tokens that were recorded elsewhere."""
        session = cls.__new__(cls)
        TokenArrays.__init__(session)
        session._template, session._policy, session._limit = template, policy, template.context_limit
        session._sent, session.messages, session.turns = (), [], []
        session.num_prompt_tokens = num_prompt_tokens
        return session

    @property
    def num_assistant_turns(self) -> int:
        return sum(1 for turn in self.turns if turn.finish_reason)

    def version_range(self) -> tuple[int, int]:
        """Oldest and newest policy version among the sampled tokens; the policy's own when none was sampled."""
        sampled = [version for version, m in zip(self.versions, self.mask, strict=True) if m]
        return (min(sampled), max(sampled)) if sampled else (self._policy.version, self._policy.version)

    async def generate_turn(
        self, engine: RolloutEngine, sampling: Sampling, *, request_id: str, moves: "PolicyMoves | None" = None
    ) -> SampledTurn:
        """Sample one assistant turn. Raises WorkerError(ENGINE), or ContextFullError when no token fits.

        With `moves` the turn goes on with a newer version when there is one: what was sampled stays, each token with
        the version it is from.
        """
        room = min(sampling.max_new_tokens, self._limit - len(self.ids))
        if room < 1:
            raise ContextFullError(f"{len(self.ids)} tokens fill the context of {self._limit}")
        start, parts = len(self.ids), list[GenerateResult]()
        while True:
            if moves is not None:
                self._policy = moves.policy
            request = self._request(sampling, room - (len(self.ids) - start), request_id, len(parts))
            result = await (engine.generate(request) if moves is None else moves.generate(engine, request))
            moved = moves is not None and moves.policy.version > self._policy.version
            _check(result, cut_short=moved)
            parts.append(result)
            self._extend_result(result)
            if result.finish_reason != "abort" or len(self.ids) - start >= room:
                return self._add_turn(start, parts)

    def _request(self, sampling: Sampling, num_new: int, request_id: str, part: int) -> GenerateRequest:
        assert tuple(self.ids[: len(self._sent)]) == self._sent, "a sent token was changed"
        self._sent = tuple(self.ids)
        seed = sampling.seed + TURN_SEED_STRIDE * self.num_assistant_turns + PART_SEED_STRIDE * part
        return GenerateRequest(
            input_ids=self._sent,
            sampling=msgspec.structs.replace(sampling, max_new_tokens=num_new, seed=seed),
            adapter=self._policy.adapter,
            request_id=request_id,
            stop_token_ids=(self._template.eos_id,),
        )

    def append(self, messages: Sequence[Message], tool_call: ToolCallRecord | None = None) -> None:
        """Add observation messages after an assistant turn; ends in the next generation prompt."""
        if not self.turns[-1].finish_reason:
            raise ValueError("messages can only follow an assistant turn")
        start = len(self.ids)
        if self.ids[-1] != self._template.eos_id:
            self.extend_observed([self._template.eos_id])
        self.extend_observed(self._template.suffix(messages))
        self.messages.extend(messages)
        for message in messages:
            self.turns.append(
                TurnRecord(
                    role=message.role,
                    text=message.content,
                    token_start=start,
                    token_stop=len(self.ids),
                    tool_call=tool_call,
                )
            )

    def token_texts(self) -> list[str]:
        """Text of each token by itself, for display."""
        return self._template.token_texts(self.ids)

    def _extend_result(self, result: GenerateResult) -> None:
        self.extend_sampled(result.output_ids, result.logprobs, versions_of(self._policy, result))

    def _add_turn(self, start: int, parts: Sequence[GenerateResult]) -> SampledTurn:
        finish = "length" if parts[-1].finish_reason == "abort" else parts[-1].finish_reason
        engine_seconds = sum(part.engine_seconds for part in parts)
        text = self._template.decode(self.ids[start:])
        self.messages.append(Message(role="assistant", content=text))
        self.turns.append(
            TurnRecord(
                role="assistant",
                text=text,
                token_start=start,
                token_stop=len(self.ids),
                finish_reason=finish,
                engine_seconds=engine_seconds,
            )
        )
        return SampledTurn(
            text=text,
            complete=finish == "stop",
            finish_reason=finish,
            num_tokens=len(self.ids) - start,
            engine_seconds=engine_seconds,
            queue_seconds=sum(part.queue_seconds for part in parts),
        )


def _check(result: GenerateResult, *, cut_short: bool) -> None:
    """`cut_short`: we asked for the abort, so that the turn goes on with a newer version."""
    check_lengths(result)
    if cut_short and result.finish_reason == "abort":
        return
    if result.finish_reason == "abort":
        raise WorkerError(Boundary.ENGINE, "the engine aborted the request")
    if not result.output_ids:
        raise WorkerError(Boundary.ENGINE, "the engine returned no token")
