"""Messages between the planes: jobs to workers, batches to the trainer, reports back. All JSON."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpu_workers.contracts.enums import Purpose
from gpu_workers.contracts.groups import EpisodeRecord
from gpu_workers.contracts.transfers import Transfer as Transfer


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding of one group. temperature 0 is greedy."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


class PolicyRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which policy answers: the engine's base model with an adapter, or bare."""

    adapter: str = ""  # adapter name on the engine; empty: base model
    weights: str = ""  # version of the base weights that must answer; empty: whatever the engine has
    version: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0  # recorded on each sampled token
    num_shots: int = 0


class RolloutJob(msgspec.Struct, frozen=True, kw_only=True):
    """Generate, verify and report one group. `task` is the object key of a TaskBundle."""

    group_id: str
    attempt: int  # dispatch number of the group
    purpose: Purpose
    task: str
    group_size: int
    policy: PolicyRef
    sampling: Sampling
    deadline: float  # unix seconds; past it nobody waits any more
    run_id: str = ""
    run_attempt: int = 0
    engines: list[str] = []  # base URLs; empty: the worker's own setting
    audit_share: float = 1.0  # of the episodes that the task's audit verifier looks at


class GroupSignal(msgspec.Struct, frozen=True, kw_only=True):
    """Broadcast to rollout workers about groups they run; best effort. Without `policy`: give them up unreported.

    With it: their episodes go on with that version, what they have sampled is kept.
    """

    group_ids: list[str]
    policy: PolicyRef | None = None
    reason: str = ""


class TrainJob(msgspec.Struct, frozen=True, kw_only=True):
    """Run one trainer attempt. `spec` is the RunSpec as plain data."""

    run_id: str
    attempt: int
    token: int  # fencing token of the lease
    spec: dict[str, Any]
    base_model: str  # slug of the base model; the worker finds its folder below its models folder
    parent_checkpoint: str = ""  # object key of the adapter folder to start from
    parent_sha256: str = ""
    resume_from: str = ""  # object key of the newest durable checkpoint of this run
    dataset: str = ""  # object key of the SFT dataset, JSONL of {prompt:[{role,content}], completion:[{role,content}]}
    publish_every: int = 0  # SFT: steps between published checkpoints, 0: only the last


class BatchGroup(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    uri: str  # object key of the group file
    age: int


class BatchMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Batch `index` takes the policy from version `index` to `index + 1`."""

    run_id: str
    attempt: int
    batch_id: str
    index: int
    groups: list[BatchGroup]


class StopMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Sent on the batch queue: no more batches; finish (`cancelled` False) or drop everything."""

    stop: bool = True
    cancelled: bool = False
    reason: str = ""


class AdapterInstall(msgspec.Struct, frozen=True, kw_only=True):
    """One policy version: an adapter, or, by any other transfer, all weights."""

    name: str  # on the engine
    uri: (
        str  # object key of the PEFT folder, or of the model folder; empty, as its digest: the base model's own weights
    )
    sha256: str  # of its weights file
    version: int = 0


class FleetJob(msgspec.Struct, frozen=True, kw_only=True):
    """Make every engine hold `install` and drop `retire`. `base_model` is the slug the engines must serve."""

    job_id: str
    base_model: str
    install: list[AdapterInstall] = []
    retire: list[str] = []
    transfer: Transfer = Transfer.ADAPTER
    engines: list[str] = []
    run_id: str = ""
    run_attempt: int = 0


class VerifyItem(msgspec.Struct, frozen=True, kw_only=True):
    """Check one task: reference passes, empty answer and every known-bad answer fail, repeats agree."""

    task_id: str
    task: str  # object key of the TaskBundle


class VerifyJob(msgspec.Struct, frozen=True, kw_only=True):
    """`repeats` verdicts of the reference must agree, and `bad_repeats` (0: as many) of every answer that must fail."""

    job_id: str
    suite_id: str
    items: list[VerifyItem]
    repeats: int = 3
    bad_repeats: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Envelope of every report. `report_id` is unique for ever: storing twice is a no-op."""

    report_id: str
    kind: str  # tag of the body, see below
    body: dict[str, Any]
    worker: str = ""
    sent_at: float = 0.0
    run_id: str = ""
    run_attempt: int = 0
    token: int = 0


class GroupReport(msgspec.Struct, kw_only=True):
    """kind "group". A group that failed by infrastructure has no uri and an `error`."""

    group_id: str
    attempt: int
    uri: str = ""
    transcript: str = ""
    episodes: list[EpisodeRecord] = []  # without turns and sandbox logs (they are in the transcript)
    min_version: int = 0
    max_version: int = 0
    error: str = ""
    boundary: str = ""
    duration_seconds: float = 0.0
    started_at: float = 0.0
    finished_at: float = 0.0


class TrainerStarted(msgspec.Struct, kw_only=True):
    """kind "trainer_started"."""

    resumed_version: int = 0
    batch_ids: list[str] = []  # every batch contained in the checkpoint resumed from, in order
    total_steps: int = 0  # SFT: known after reading the dataset
    host: str = ""


class StepReport(msgspec.Struct, kw_only=True):
    """kind "step". The checkpoint is durable before this is sent."""

    version: int
    batch_id: str = ""  # empty for SFT
    batch_ids: list[str] = []  # all batches in the checkpoint
    checkpoint: str = ""  # object key of the folder: adapter + state; empty when this step published nothing (SFT)
    adapter: str = ""  # object key of the PEFT folder inside it
    sha256: str = ""
    num_bytes: int = 0
    metrics: dict[str, float] = {}  # names of apps/metrics/registry
    skipped_groups: dict[str, str] = {}  # group_id -> reason, e.g. zero_variance or non-finite
    started_at: float = 0.0
    finished_at: float = 0.0
    wait_seconds: float = 0.0  # for the batch
    train_seconds: float = 0.0
    publish_seconds: float = 0.0


class TrainerFinished(msgspec.Struct, kw_only=True):
    """kind "trainer_finished"."""

    version: int
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


class TrainerFailed(msgspec.Struct, kw_only=True):
    """kind "trainer_failed". `retryable` False halts the run."""

    code: str
    message: str
    retryable: bool = True


class PolicyInstalled(msgspec.Struct, kw_only=True):
    """kind "installed"."""

    job_id: str
    ok: bool
    message: str = ""
    installed: list[str] = []
    retired: list[str] = []
    engines: list[str] = []
    duration_seconds: float = 0.0
    pause_seconds: float | None = None  # longest gap between tokens during the install; None: nothing was sampled
    steady_gap_seconds: float | None = None  # the same since the install before
    num_bytes: int = 0  # moved to bring the weights
    transfer: str = ""  # what `auto` came down to; empty: as asked
    density: float | None = None  # elements that these bytes change / all elements; None: not counted


class TaskCheck(msgspec.Struct, kw_only=True):
    task_id: str
    ok: bool
    reason_code: str = "OK"
    message: str = ""


class TasksVerified(msgspec.Struct, kw_only=True):
    """kind "verified"."""

    job_id: str
    suite_id: str
    checks: list[TaskCheck] = []


class WorkerSample(msgspec.Struct, kw_only=True):
    """kind "sample": measurements of a process outside a step (engine utilisation, memory, CPU seconds)."""

    source: str
    metrics: dict[str, float] = {}
    time: float = 0.0


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Own queue; extends the lease when the token is the current one."""

    run_id: str
    attempt: int
    token: int
    worker: str = ""
    state: str = ""  # loading | waiting | training | publishing
    step: int = 0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    time: float = 0.0
