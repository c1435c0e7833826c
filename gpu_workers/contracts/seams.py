"""The seams: Protocols that have several implementations and one conformance suite each."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpu_workers.contracts.constraints import Constraint
from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import ComponentRecord, EpisodeRecord, SandboxRecord, ToolCallRecord
from gpu_workers.contracts.messages import AdapterInstall, PolicyInstalled, Report, Sampling
from gpu_workers.contracts.tasks import EnvironmentContract, TaskBundle


class WorkerError(RuntimeError):
    """A failure attributed to one boundary; `retryable` says whether another try may help."""

    def __init__(self, boundary: Boundary, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.boundary = boundary
        self.retryable = retryable


@dataclass(frozen=True)
class VersionSpan:
    """Sampled tokens [start, stop) of one response came from `version` (as the engine names it)."""

    version: str
    start: int
    stop: int


@dataclass(frozen=True)
class GenerateRequest:
    """Token ids in. `adapter` empty: base model. `request_id` allows an abort.

    `weights` names the version of the base weights that must answer; empty: whatever the engine has.
    """

    input_ids: Sequence[int]
    sampling: Sampling
    adapter: str = ""
    weights: str = ""
    request_id: str = ""
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    constraint: Constraint | None = None  # log-probs are then of what it leaves, not of the policy alone


@dataclass(frozen=True)
class GenerateResult:
    """Token ids out; `logprobs` one per output id, of the distribution sampled from. Times in seconds."""

    output_ids: list[int]
    logprobs: list[float]
    finish_reason: str  # stop | length | abort
    spans: list[VersionSpan] = field(default_factory=list)
    cached_tokens: int = 0
    engine_seconds: float = 0.0
    queue_seconds: float = 0.0


@dataclass(frozen=True)
class EngineInfo:
    model_path: str
    weight_version: str
    adapters: tuple[str, ...]
    raw: dict[str, Any] = field(default_factory=dict)


class RolloutEngine(Protocol):
    """One engine, spoken to over SGLang's API. Raises WorkerError(ENGINE)."""

    async def generate(self, request: GenerateRequest) -> GenerateResult: ...
    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateResult]: ...  # cumulative results
    async def abort(self, request_id: str) -> None: ...
    async def pause(self, mode: str = "abort") -> None: ...
    async def resume(self) -> None: ...
    async def flush_cache(self) -> None: ...
    async def info(self) -> EngineInfo: ...
    async def healthy(self) -> bool: ...
    async def load_adapter(self, name: str, path: str) -> None: ...
    async def unload_adapter(self, name: str) -> None: ...
    async def stage_weights(self, path: str) -> bool: ...  # ahead of update_weights; False where the engine cannot
    async def update_weights(self, path: str, version: str, *, flush_cache: bool = True) -> None: ...
    async def set_version(self, version: str) -> None: ...  # the name of the base weights, which stay as they are
    async def weights_digest(self) -> str: ...  # of the base weights in memory: equal exactly when they are
    async def metrics(self) -> dict[str, float]: ...
    async def token_gaps(self) -> dict[float, float]: ...  # bound in seconds -> cumulative count of gaps between tokens
    async def close(self) -> None: ...


@dataclass(frozen=True)
class GroupAddress:
    """Where the ranks of a process group for weights meet; rank 0 sends."""

    name: str
    host: str
    port: int
    world_size: int
    backend: str  # gloo | nccl


@dataclass(frozen=True)
class Bucket:
    """Tensors that are sent one after the other as one run of bytes."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]  # as torch writes them: bfloat16
    shapes: tuple[tuple[int, ...], ...]
    num_bytes: int


class CollectiveEngine(RolloutEngine, Protocol):
    """An engine that takes weights over a process group: join, begin, receive…, end, set the version, leave."""

    async def num_ranks(self, backend: str) -> int: ...  # of the engine; raises WorkerError where it cannot be a member
    async def join_group(self, group: GroupAddress, rank: int, *, seconds: float) -> None: ...
    async def swaps_at_end(self) -> bool: ...  # tensors that it receives change nothing before the end
    async def begin_update(self, *, discard: bool = False) -> None: ...
    async def receive(self, bucket: Bucket, group: str, *, seconds: float) -> None: ...
    async def end_update(self) -> None: ...
    async def leave_group(self, group: str) -> None: ...
    async def device(self) -> str: ...  # cpu | cuda


class WeightTransfer(Protocol):
    """Brings policy versions to a fleet. Installed means verified: digest, read-back, probe."""

    async def install(
        self, install: Sequence[AdapterInstall], retire: Sequence[str], *, base_fingerprint: str = ""
    ) -> PolicyInstalled: ...


@dataclass(frozen=True)
class ExecResult:
    """Outcome of one call inside a sandbox."""

    exit_code: int
    stdout: str
    stderr: str
    duration_seconds: float
    timed_out: bool = False
    truncated: bool = False
    limit_hit: str = ""  # memory | cpu | processes | disk | output


class Sandbox(Protocol):
    """One isolated environment under a contract. Raises WorkerError(INFRASTRUCTURE) when it cannot start."""

    async def start(self) -> None: ...
    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_seconds: float | None = None
    ) -> ExecResult: ...
    async def run_python(  # a script, or `function(arguments)` of a module, whose returned text is then all of stdout
        self,
        source: str,
        *,
        function: str = "",
        arguments: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        service: str = "",  # with `function`: arguments["descriptor"] is then the socket of that service's streams
    ) -> ExecResult: ...
    async def serve(  # a program that lives as long as the sandbox and runs only during calls with its name
        self, name: str, *, argv: Sequence[str] = (), source: str = "", environment: Mapping[str, str] | None = None
    ) -> None: ...
    async def write(self, path: str, data: bytes) -> None: ...
    async def read(self, path: str, limit: int) -> bytes: ...
    async def files(self) -> dict[str, bytes]: ...  # regular files, bounded, after the process tree is gone
    async def close(self) -> None: ...
    @property
    def record(self) -> SandboxRecord: ...


class SandboxBackend(Protocol):
    """Makes sandboxes. `probe` raises WorkerError with what to do when this host cannot isolate."""

    name: str

    async def probe(self) -> str: ...
    def create(self, contract: EnvironmentContract) -> Sandbox: ...


class Environment(Protocol):
    """The world of one episode: reset, step until the episode ends, state, close. Nothing is shared between episodes.

    `step` never raises for what the policy did: a bad call is an observation. It raises WorkerError when the
    world itself broke. `state` is the workspace after the last step; no step may follow it.
    """

    async def reset(self) -> None: ...
    async def step(self, name: str, arguments: dict[str, Any]) -> ToolCallRecord: ...
    async def state(self) -> dict[str, bytes]: ...
    async def close(self) -> None: ...
    @property
    def record(self) -> SandboxRecord: ...


@dataclass(frozen=True)
class VerifierResult:
    """verdict/score of one finished episode; score None exactly when the verdict is error or quarantined."""

    verdict: str
    score: float | None
    reason_code: str
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    duration_seconds: float = 0.0
    components: tuple[ComponentRecord, ...] = ()
    verifier_hash: str = ""
    nonce: str = ""  # of the private channel the result came through
    isolation: str = ""
    limits_hit: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinishedEpisode:
    """What a verifier may see: never the policy, never other episodes."""

    answer: str  # text of the last assistant turn, special tokens removed
    messages: list[dict[str, Any]]  # role, content (and tool name for tool results)
    files: dict[str, bytes] = field(default_factory=dict)
    stop_reason: str = "answered"


class Verifier(Protocol):
    async def verify(self, task: TaskBundle, episode: FinishedEpisode) -> VerifierResult: ...


class Reporter(Protocol):
    """Sends reports to the control plane; safe to repeat."""

    def send(self, report: Report) -> None: ...


@dataclass(frozen=True)
class Published:
    """A durable policy version."""

    version: int
    checkpoint: str  # object key of the checkpoint folder
    adapter: str  # object key of the folder that engines load: PEFT, or the whole model
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class TrainGroup:
    group_id: str
    age: int
    file: bytes  # encoded group


class TrainerBackend(Protocol):
    """Batch in; metrics out; checkpoints durable and exact. `version` counts finished steps."""

    version: int

    @property
    def weights_file(self) -> str: ...  # what engines load, relative to a saved folder

    def step(self, batch_id: str, groups: Sequence[TrainGroup]) -> tuple[dict[str, float], dict[str, str]]: ...
    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


__all__ = [
    "Bucket",
    "CollectiveEngine",
    "EngineInfo",
    "Environment",
    "EpisodeRecord",
    "ExecResult",
    "FinishedEpisode",
    "GenerateRequest",
    "GenerateResult",
    "GroupAddress",
    "Published",
    "Reporter",
    "RolloutEngine",
    "Sandbox",
    "SandboxBackend",
    "TrainGroup",
    "TrainerBackend",
    "Verifier",
    "VerifierResult",
    "VersionSpan",
    "WeightTransfer",
    "WorkerError",
]
