"""What a session server gives of a session: exact tokens of its branches, ready to be an episode's."""

import msgspec
import numpy as np

from gpu_workers.contracts.groups import EpisodeTokens, TurnRecord
from gpu_workers.contracts.messages import PolicyRef


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """One way through the session, from its first token on; ids, mask and logprobs have length L.

    mask: 1 on sampled tokens, but 0 on those sampled under a constraint, whose log-probs are not the policy's own.
    logprobs: behaviour log-prob, 0.0 where mask is 0. The first `shared_tokens` also lie in a branch listed before it.
    """

    branch: int
    main: bool  # of the newest turn
    shared_tokens: int
    num_prompt_tokens: int
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[tuple[int, int, int]]  # [version, start, stop), of sampled tokens
    turns: list[TurnRecord]
    finish_reason: str  # of the last turn: stop | length | abort
    num_constrained_tokens: int = 0

    def tokens(self, reward: float | None, *, own_only: bool = False) -> EpisodeTokens:
        """The arrays of a group file. `own_only`: tokens shared with an earlier branch are not trained on again."""
        mask = np.array(self.mask, dtype=np.uint8)
        logprobs = np.array(self.logprobs, dtype=np.float32)
        versions = np.full(len(self.ids), -1, dtype=np.int32)
        for version, start, stop in self.versions:
            versions[start:stop] = version
        if own_only:
            mask[: self.shared_tokens], logprobs[: self.shared_tokens], versions[: self.shared_tokens] = 0, 0.0, -1
        return EpisodeTokens(
            tokens=np.array(self.ids, dtype=np.int32), mask=mask, logprobs=logprobs, versions=versions, reward=reward
        )


class BranchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A branch in numbers."""

    branch: int
    main: bool
    shared_tokens: int
    num_tokens: int
    num_sampled_tokens: int
    finish_reason: str
    num_constrained_tokens: int = 0  # of the sampled ones


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is now. `forks` lists every branch, `branches` those that were asked for."""

    id: str
    label: str
    model_path: str
    policy: PolicyRef
    tool_format: str
    num_turns: int  # finished ones, those of all branches
    num_running: int
    forks: list[BranchSummary]
    branches: list[Branch]
