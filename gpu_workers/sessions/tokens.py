"""Exact tokens as they are kept: four arrays that only grow, and what an engine's answer must be to join them."""

from collections.abc import Sequence

import numpy as np

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import EpisodeTokens
from gpu_workers.contracts.messages import PolicyRef
from gpu_workers.contracts.seams import GenerateResult, WorkerError


class TokenArrays:
    """One entry a token. mask is 1 on sampled ones; elsewhere the log-prob is 0.0 and the version -1."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []

    @property
    def num_sampled_tokens(self) -> int:
        return sum(self.mask)

    def extend_observed(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.mask.extend([0] * len(ids))
        self.logprobs.extend([0.0] * len(ids))
        self.versions.extend([-1] * len(ids))

    def extend_sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.mask.extend([1] * len(ids))
        self.logprobs.extend(logprobs)
        self.versions.extend(versions)

    def tokens(self, reward: float | None) -> EpisodeTokens:
        """The arrays as stored in a group file."""
        return EpisodeTokens(
            tokens=np.array(self.ids, dtype=np.int32),
            mask=np.array(self.mask, dtype=np.uint8),
            logprobs=np.array(self.logprobs, dtype=np.float32),
            versions=np.array(self.versions, dtype=np.int32),
            reward=reward,
        )


def versions_of(policy: PolicyRef, result: GenerateResult) -> list[int]:
    """Version of every sampled token. The engine's own spans speak of its base weights, not of adapters."""
    versions = [policy.version] * len(result.output_ids)
    if policy.adapter or not all(span.version.isdigit() for span in result.spans):
        return versions
    for span in result.spans:
        versions[span.start : span.stop] = [int(span.version)] * (span.stop - span.start)
    return versions[: len(result.output_ids)]


def check_lengths(result: GenerateResult) -> None:
    """Raises WorkerError unless every sampled id has its log-prob."""
    if len(result.output_ids) != len(result.logprobs):
        raise WorkerError(
            Boundary.ENGINE,
            f"the engine returned {len(result.output_ids)} ids with {len(result.logprobs)} log-probs",
            retryable=False,
        )
