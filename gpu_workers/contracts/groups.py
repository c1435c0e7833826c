"""The file of a finished group: token arrays in safetensors, and the transcript beside it in JSON."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from gpu_workers.contracts.enums import (
    TAMPER_REASONS,
    Boundary,
    FlagSeverity,
    ReasonCode,
    StopReason,
    ToolOutcome,
    Verdict,
    VerifierKind,
)

FORMAT_VERSION = "1"
MAX_REWARD = 1e6  # verifiers score from 0 to 1; what is beyond this is no reward but an accident
ROUNDING = 1e-3  # of a log-prob of almost 0
_ARRAYS = {
    "tokens": np.int32,
    "mask": np.uint8,
    "logprobs": np.float32,
    "versions": np.int32,
    "offsets": np.int64,
    "rewards": np.float64,  # NaN: no reward
}


class GroupFileError(ValueError):
    """A group file whose arrays disagree; the message names the episode."""


@dataclass(frozen=True)
class EpisodeTokens:
    """Exact tokens of one episode, prompt first. All arrays have length L.

    mask: 1 on sampled tokens. logprobs: behaviour log-prob (temperature applied), 0.0 where mask is 0.
    versions: policy version that sampled the token, -1 where mask is 0.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    reward: float | None = None  # None: no reward (infrastructure, verifier error)

    def check(self, index: int) -> None:
        """Raise GroupFileError unless the arrays fit together and are finite."""
        length = len(self.tokens)
        for name in ("mask", "logprobs", "versions"):
            if len(getattr(self, name)) != length:
                raise GroupFileError(f"episode {index}: {name} has {len(getattr(self, name))} entries, tokens {length}")
        sampled = self.mask == 1
        if (self.mask > 1).any():
            raise GroupFileError(f"episode {index}: the mask has an entry that is neither 0 nor 1")
        if (self.tokens < 0).any():
            raise GroupFileError(f"episode {index}: token {self.tokens.min()} is none")
        if not np.isfinite(self.logprobs[sampled]).all():
            raise GroupFileError(f"episode {index}: a behaviour log-prob is NaN or infinite")
        if (self.logprobs[sampled] > ROUNDING).any():
            raise GroupFileError(f"episode {index}: behaviour log-prob {self.logprobs[sampled].max():g} is above 0")
        if (self.versions[sampled] < 0).any():
            raise GroupFileError(f"episode {index}: a sampled token has no policy version")
        if self.reward is not None and not (np.isfinite(self.reward) and abs(self.reward) <= MAX_REWARD):
            raise GroupFileError(f"episode {index}: reward is {self.reward}, not a number within ±{MAX_REWARD:g}")


def encode_group(episodes: list[EpisodeTokens], metadata: dict[str, str]) -> bytes:
    """Flatten the episodes with offsets [E+1] into one safetensors file. Raises GroupFileError."""
    if not episodes:
        raise GroupFileError("a group without episodes")
    for index, episode in enumerate(episodes):
        episode.check(index)
    offsets = np.cumsum([0] + [len(e.tokens) for e in episodes]).astype(np.int64)
    rewards = np.array([np.nan if e.reward is None else e.reward for e in episodes], dtype=np.float64)
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.concatenate([e.tokens for e in episodes]).astype(np.int32),
        "mask": np.concatenate([e.mask for e in episodes]).astype(np.uint8),
        "logprobs": np.concatenate([e.logprobs for e in episodes]).astype(np.float32),
        "versions": np.concatenate([e.versions for e in episodes]).astype(np.int32),
        "offsets": offsets,
        "rewards": rewards,  # NaN: no reward
    }
    return save_safetensors(arrays, metadata={"format": FORMAT_VERSION, **metadata})


def decode_group(data: bytes) -> list[EpisodeTokens]:
    """Read a group file back and check it. Raises GroupFileError where it is damaged or none."""
    try:
        arrays = load_safetensors(data)
    except SafetensorError as error:
        raise GroupFileError(f"not a group file: {error}") from error
    for name, dtype in _ARRAYS.items():
        if name not in arrays or arrays[name].dtype != dtype or arrays[name].ndim != 1:
            found = f"{arrays[name].dtype} of shape {arrays[name].shape}" if name in arrays else "missing"
            raise GroupFileError(f"array {name} is {found}, a row of {np.dtype(dtype)} is needed")
    offsets, length = arrays["offsets"], len(arrays["tokens"])
    if (
        len(offsets) != len(arrays["rewards"]) + 1
        or (offsets[0], offsets[-1]) != (0, length)
        or (np.diff(offsets) < 0).any()
    ):
        raise GroupFileError(f"offsets of {len(offsets)} entries do not cut {length} tokens into episodes")
    for name in ("mask", "logprobs", "versions"):
        if len(arrays[name]) != length:
            raise GroupFileError(f"array {name} has {len(arrays[name])} entries, tokens {length}")
    episodes = []
    for index, (start, stop) in enumerate(pairwise(offsets)):
        reward = float(arrays["rewards"][index])
        episode = EpisodeTokens(
            tokens=arrays["tokens"][start:stop],
            mask=arrays["mask"][start:stop],
            logprobs=arrays["logprobs"][start:stop],
            versions=arrays["versions"][start:stop],
            reward=None if np.isnan(reward) else reward,
        )
        episode.check(index)
        episodes.append(episode)
    return episodes


class ToolCallRecord(msgspec.Struct, kw_only=True):
    """One executed (or refused) tool call. `result` is what the policy is told, before it is shortened for it."""

    name: str
    arguments: dict[str, Any] = {}
    result: str = ""
    ok: bool = True
    invalid: bool = False  # unknown tool, malformed call or arguments against the schema: not executed
    error: str = ""
    duration_seconds: float = 0.0
    truncated: bool = False
    outcome: ToolOutcome | None = None  # None: stored before outcomes were
    exit_code: int | None = None  # None: no process ran; negative: the signal that ended it
    limit_hit: str = ""  # memory | cpu | processes | disk | output
    stdout: str = ""  # first characters of what the process wrote
    stderr: str = ""  # last characters of it
    opened_decoys: list[str] = []  # decoys of the environment that were opened while it ran
    opened_beside: float | None = None  # share of comparable ordinary files opened with them; None: there are none


class TurnRecord(msgspec.Struct, kw_only=True):
    """One message of the conversation with its token span [start, stop) in the episode's arrays."""

    role: str
    text: str
    token_start: int = 0
    token_stop: int = 0
    tool_call: ToolCallRecord | None = None
    finish_reason: str = ""
    engine_seconds: float = 0.0


class NetworkEvent(msgspec.Struct, kw_only=True):
    """One connection that a sandbox asked its proxy for. Bytes as seen from inside the sandbox."""

    host: str
    port: int
    allowed: bool
    reason: str = ""  # of a refusal or a failure
    address: str = ""  # the address connected to
    sent_bytes: int = 0
    received_bytes: int = 0
    started_seconds: float = 0.0  # since the sandbox was made
    duration_seconds: float = 0.0


class NetworkLog(msgspec.Struct, kw_only=True):
    """Every connection in numbers, the first of them one by one."""

    num_allowed: int = 0
    num_refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    events: list[NetworkEvent] = []


class SandboxRecord(msgspec.Struct, kw_only=True):
    """What the sandbox really applied and did."""

    backend: str = ""
    isolation: str = ""  # e.g. "bubblewrap: user, pid, net, ipc, uts namespaces; seccomp; uid 65534"
    limits_hit: list[str] = []
    log: str = ""  # one line an event: start, exec, exit status, duration
    canary: str = ""  # of this episode's decoys; empty where none were placed
    changed_decoys: list[str] = []  # decoys that differ at the end, and files put among them
    removed_decoys: list[str] = []  # decoys that are gone at the end
    refused_files: list[str] = []  # "path: reason" of what could not be taken as a result
    contract_hash: str = ""  # of the contract it was made from
    applied: dict[str, str] = {}  # topic -> what bounds it here, e.g. memory -> "cgroup v2 memory.max 536870912"
    network: NetworkLog = msgspec.field(default_factory=NetworkLog)


class ComponentRecord(msgspec.Struct, kw_only=True):
    """One part of a verdict: a test, or one verifier of a composite. `score` is null where it was not judged."""

    name: str
    verdict: Verdict
    score: float | None = None
    weight: float = 1.0
    reason_code: ReasonCode = ReasonCode.OK
    message: str = ""
    duration_seconds: float = 0.0


class VerdictRecord(msgspec.Struct, kw_only=True):
    """What one verifier said of one episode. `score` is null exactly for the verdicts error and quarantined."""

    kind: VerifierKind
    verdict: Verdict
    score: float | None = None
    reason_code: ReasonCode = ReasonCode.OK
    message: str = ""
    evidence: dict[str, Any] = {}
    components: list[ComponentRecord] = []
    verifier_hash: str = ""  # over kind, version, configuration, program and our code, not the task's own answer
    nonce: str = ""  # of the private channel the result came through; empty where nothing was executed
    isolation: str = ""
    limits_hit: list[str] = []
    duration_seconds: float = 0.0


class TamperFlag(msgspec.Struct, kw_only=True):
    """One rule of the tamper detectors that matched, and what it saw where."""

    rule: str
    pattern: int  # its number in docs/guides/reward-hacking.md
    severity: FlagSeverity
    message: str
    where: str = ""  # e.g. "tool call 2, line 3", "file tests/conftest.py", "answer"
    excerpt: str = ""


class EpisodeRecord(msgspec.Struct, kw_only=True):
    """Everything of one episode but its token arrays. Durations in seconds."""

    index: int
    seed: int
    stop_reason: StopReason
    answer: str = ""
    turns: list[TurnRecord] = []
    token_texts: list[str] = []  # each token by itself, for display only: the ids in the group file are the truth
    verdict: Verdict = Verdict.ERROR
    reward: float | None = None
    success: bool = False  # verdict is pass
    reason_code: ReasonCode = ReasonCode.ENGINE_ERROR
    message: str = ""
    evidence: dict[str, Any] = {}
    boundary: Boundary | None = None  # of a failure
    num_turns: int = 0
    num_tool_calls: int = 0
    num_invalid_calls: int = 0
    num_prompt_tokens: int = 0
    num_sampled_tokens: int = 0
    num_total_tokens: int = 0
    min_version: int = 0
    max_version: int = 0
    mean_logprob: float = 0.0
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0  # waiting for the engine to start the request
    tool_seconds: float = 0.0
    verifier_seconds: float = 0.0
    total_seconds: float = 0.0
    sandbox: SandboxRecord = msgspec.field(default_factory=SandboxRecord)
    verification: VerdictRecord | None = None  # of the training verifier, as it said it
    flags: list[TamperFlag] = []  # of the tamper detectors
    audit: VerdictRecord | None = None  # of the audit verifier, where it ran: recorded, never a reward

    @property
    def is_hacking(self) -> bool:
        """Whether the episode counts as an attempt at reward hacking; a mere suspicion does not."""
        counted = any(flag.severity is not FlagSeverity.SUSPICION for flag in self.flags)
        return counted or self.reason_code in TAMPER_REASONS


@dataclass(frozen=True)
class GroupTranscript:
    """The JSON stored beside a group file."""

    group_id: str
    task_key: str
    task_hash: str
    episodes: list[EpisodeRecord] = field(default_factory=list)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "GroupTranscript":
        return msgspec.json.decode(data, type=cls)


def jsonable(value: Any) -> Any:
    """Builtins of a struct, for a broker message."""
    return json.loads(msgspec.json.encode(value))
