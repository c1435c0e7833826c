"""What an evaluation measured, from stored episodes: one summary per arm, clusters, outcomes by task."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from apps.evaluations.models import Evaluation, EvaluationArm
from apps.evaluations.statistics import clustered_mean, quantile_of, wilson
from apps.runs.models import Episode

_FIELDS = (
    "id", "group_id", "index", "success", "reward", "reason_code", "answer", "tamper", "num_invalid_calls", "num_turns",
    "num_tool_calls", "num_total_tokens", "num_sampled_tokens", "total_seconds", "engine_seconds", "tool_seconds",
    "verifier_seconds", "queue_seconds", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Percentiles:
    """Seconds of whole episodes."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class ClusterResult:
    cluster: str
    n: int
    success: float


@dataclass(frozen=True)
class ArmResult:
    """One arm. Shares are of episodes with a verdict; `low` and `high` a 95 % Wilson interval."""

    arm_id: int
    label: str
    policy_id: UUID | None
    policy: str
    kind: str
    num_shots: int
    num_planned: int
    n: int
    num_tasks: int
    num_success: int
    success: float | None
    low: float | None
    high: float | None
    invalid_call_share: float | None
    tamper_share: float | None
    latency_seconds: Percentiles
    mean_tokens: float | None  # prompt and answers
    mean_sampled_tokens: float | None
    mean_turns: float | None
    mean_tool_calls: float | None
    episode_seconds: float  # all episodes together: what the evaluation cost
    engine_seconds: float
    train_cpu_seconds: float | None  # spent on the policy and all it came from
    reasons: dict[str, int] = field(default_factory=dict)
    clusters: list[ClusterResult] = field(default_factory=list)

    @property
    def num_missing(self) -> int:
        return self.num_planned - self.n


@dataclass(frozen=True)
class EpisodeOutcome:
    episode_id: UUID
    group_id: UUID
    success: bool
    reason_code: str
    answer: str


@dataclass(frozen=True)
class TaskOutcome:
    """One task in every arm, in the arms' order; an arm without a verdict has an empty list."""

    task_id: UUID
    key: str
    cluster: str
    tags: list[str]
    arms: list[list[EpisodeOutcome]]

    def success(self, arm: int) -> float | None:
        found = self.arms[arm]
        return sum(outcome.success for outcome in found) / len(found) if found else None


def scored_episodes(arm: EvaluationArm) -> list[Episode]:
    """Episodes of an arm that have a verdict, in order of task and index."""
    episodes = Episode.objects.filter(group__evaluation_item__arm=arm, reward__isnull=False)
    return list(episodes.only(*_FIELDS).order_by("group__evaluation_item__task__position", "index"))


def arm_results(evaluation: Evaluation) -> list[ArmResult]:
    """A summary of each arm."""
    arms = evaluation.arms.select_related("policy", "checkpoint__run__policy")
    return [_summarise(evaluation, arm) for arm in arms]


def _summarise(evaluation: Evaluation, arm: EvaluationArm) -> ArmResult:
    items = list(arm.items.select_related("task").order_by("position"))
    clusters = {item.group_id: item.task.cluster or item.task.key for item in items}
    episodes = scored_episodes(arm)
    n, num_success = len(episodes), sum(episode.success for episode in episodes)
    low, high = _interval(episodes)
    seconds = [episode.total_seconds for episode in episodes]
    reasons: dict[str, int] = defaultdict(int)
    for episode in episodes:
        reasons[episode.reason_code] += 1
    return ArmResult(
        arm_id=arm.pk,
        label=arm.label,
        policy_id=arm.policy_id,
        policy=arm.policy.slug if arm.policy else arm.engine_name,
        kind=arm.policy.kind if arm.policy else "checkpoint",
        num_shots=arm.num_shots,
        num_planned=len(items) * evaluation.samples,
        n=n,
        num_tasks=len({episode.group_id for episode in episodes}),
        num_success=num_success,
        success=num_success / n if n else None,
        low=low,
        high=high,
        invalid_call_share=_mean(episode.num_invalid_calls > 0 for episode in episodes),
        tamper_share=_mean(episode.tamper for episode in episodes),
        latency_seconds=Percentiles(*(quantile_of(seconds, q) for q in (0.5, 0.9, 0.95, 0.99))),
        mean_tokens=_mean(episode.num_total_tokens for episode in episodes),
        mean_sampled_tokens=_mean(episode.num_sampled_tokens for episode in episodes),
        mean_turns=_mean(episode.num_turns for episode in episodes),
        mean_tool_calls=_mean(episode.num_tool_calls for episode in episodes),
        episode_seconds=sum(seconds),
        engine_seconds=sum(episode.engine_seconds for episode in episodes),
        train_cpu_seconds=_training_cost(arm),
        reasons=dict(sorted(reasons.items(), key=lambda pair: -pair[1])),
        clusters=_by_cluster(episodes, clusters),
    )


def _interval(episodes: Sequence[Episode]) -> tuple[float | None, float | None]:
    """Wilson on episodes; several attempts at a task count as fewer independent ones, by their clustered variance."""
    n, num_success = len(episodes), sum(episode.success for episode in episodes)
    if not n:
        return None, None
    share, effective = num_success / n, n
    tasks = [str(episode.group_id) for episode in episodes]
    if len(set(tasks)) < n and 0 < share < 1 and len(set(tasks)) > 1:
        error = clustered_mean([float(episode.success) for episode in episodes], tasks, 0.025).standard_error
        effective = max(1, min(n, round(share * (1 - share) / error**2))) if error > 0 else n
    interval = wilson(round(share * effective), effective)
    return interval.low, interval.high


def _by_cluster(episodes: Sequence[Episode], clusters: dict[UUID | None, str]) -> list[ClusterResult]:
    found: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        found[clusters[episode.group_id]].append(episode.success)
    return [ClusterResult(name, len(wins), sum(wins) / len(wins)) for name, wins in sorted(found.items())]


def _training_cost(arm: EvaluationArm) -> float | None:
    """CPU seconds of training behind the arm, its ancestors' included; None where one of them is unknown."""
    total, policy = 0.0, arm.policy
    if arm.checkpoint is not None:
        if arm.checkpoint.train_cpu_seconds is None:
            return None
        total, policy = arm.checkpoint.train_cpu_seconds, arm.checkpoint.run.policy
    while policy is not None:
        if policy.adapter and policy.train_cpu_seconds is None:
            return None
        total += policy.train_cpu_seconds or 0.0
        policy = policy.parent
    return total


def task_outcomes(evaluation: Evaluation) -> list[TaskOutcome]:
    """Every task with what each arm did, in order of import. Content: callers check the right to read it."""
    arms = list(evaluation.arms.all())
    episodes: dict[UUID, list[EpisodeOutcome]] = defaultdict(list)
    for arm in arms:
        for episode in scored_episodes(arm):
            outcome = EpisodeOutcome(
                episode.pk, episode.group_id, episode.success, episode.reason_code, episode.answer[:500]
            )
            episodes[episode.group_id].append(outcome)
    rows: dict[UUID, TaskOutcome] = {}
    position = {arm.pk: index for index, arm in enumerate(arms)}
    for item in evaluation.items.select_related("task").order_by("task__position"):
        task = item.task
        row = rows.setdefault(
            task.pk, TaskOutcome(task.pk, task.key, task.cluster or task.key, list(task.tags), [[] for _ in arms])
        )
        if item.group_id is not None:
            row.arms[position[item.arm_id]].extend(episodes.get(item.group_id, []))
    return list(rows.values())


def _mean(values: Iterable[float]) -> float | None:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else None
