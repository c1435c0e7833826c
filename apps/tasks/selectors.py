"""Reads of tasks: suites and tasks a person may see, their content, how representative a suite is."""

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

import msgspec
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from apps.accounts.models import Project
from apps.accounts.permissions import Actor, Permission, has_permission, not_found, permitted_projects
from apps.tasks.models import SplitName, Suite, SuiteState, Task, TaskState
from gpu_workers.contracts.tasks import TaskBundle
from ratchet.problems import Problem
from ratchet.store import get_store

OPEN_SPLITS = frozenset({SplitName.TRAIN, SplitName.DEV, SplitName.REGRESSION})


def is_protected(split: str) -> bool:
    """Whether the split's content needs heldout:read. So does that of every split not named here: held-out, and
    safety and sealed ones where a suite has them."""
    return split not in OPEN_SPLITS


@dataclass(frozen=True)
class SplitCounts:
    """Tasks of one split by state, and how many clusters they fall into."""

    split: str
    ready: int
    quarantined: int
    unchecked: int
    clusters: int

    @property
    def total(self) -> int:
        return self.ready + self.quarantined + self.unchecked


@dataclass(frozen=True)
class TagCounts:
    """Tasks with a tag, by split; a tag that one split lacks is a gap."""

    tag: str
    splits: dict[str, int]


@dataclass(frozen=True)
class Representativeness:
    """What a suite covers, and where it repeats itself. Counts of tasks unless named otherwise."""

    splits: list[SplitCounts]
    tags: list[TagCounts]
    quarantine_reasons: dict[str, int]
    num_duplicates: int  # tasks that ask what another one of their split asks
    shared_clusters: list[str] = field(default_factory=list)  # clusters of train that held-out has too
    largest_cluster_share: float | None = None  # of the held-out tasks; None: no clusters declared


@dataclass(frozen=True)
class CheckProgress:
    """Checks of a suite's tasks since they were last started. `left_seconds` None: nothing to estimate from."""

    state: str
    done: int
    total: int
    ready: int
    quarantined: int
    left_seconds: float | None

    @property
    def mark(self) -> str:
        """Changes when a page must be drawn anew."""
        return self.state


def visible_suites(user: Actor) -> QuerySet[Suite]:
    """Suites of the projects in which the user may read suites, newest first, with counts of their tasks."""
    projects = permitted_projects(user, Permission.SUITE_READ)
    return (
        Suite.objects.filter(project__in=projects.values("pk"))
        .select_related("project", "created_by")
        .annotate(
            num_tasks=Count("tasks"),
            num_ready=Count("tasks", filter=Q(tasks__state=TaskState.READY)),
            num_quarantined=Count("tasks", filter=Q(tasks__state=TaskState.QUARANTINED)),
            num_unchecked=Count("tasks", filter=Q(tasks__state=TaskState.UNCHECKED)),
        )
        .order_by("-id")
    )


def find_suite(user: Actor, suite_id: UUID | str) -> Suite:
    """One suite the user may see. Raises Problem 404."""
    suite = visible_suites(user).filter(pk=suite_id).first()
    if suite is None:
        raise not_found()
    return suite


def visible_tasks(user: Actor) -> QuerySet[Task]:
    """Tasks of suites the user may see, in order of import. Before showing content ask `may_read_content`."""
    projects = permitted_projects(user, Permission.SUITE_READ)
    tasks = Task.objects.filter(suite__project__in=projects.values("pk"))
    return tasks.select_related("suite__project").order_by("position")


def find_task(user: Actor, task_id: UUID | str) -> Task:
    """One task the user may see. Raises Problem 404."""
    task = visible_tasks(user).filter(pk=task_id).first()
    if task is None:
        raise not_found()
    return task


def may_read_content(user: Actor, task: Task) -> bool:
    """Whether prompt, tools and expected answer may be shown. Who shows held-out content notes it in the audit."""
    if not is_protected(task.split):
        return has_permission(user, Permission.SUITE_READ, task.suite.project)
    return has_permission(user, Permission.HELDOUT_READ, task.suite.project)


def resolve_suite(project: Project, ref: str) -> Suite:
    """The suite of `slug` (newest ready version) or `slug@version`. Raises Problem 400 that says what there is."""
    slug, _, version = ref.partition("@")
    suites = Suite.objects.filter(project=project, slug=slug).order_by("-version")
    if version:
        found = suites.filter(version=int(version)).first() if version.isdecimal() else None
    else:
        found = suites.filter(state=SuiteState.READY).first()
    if found is not None and found.state == SuiteState.READY:
        _require_declared(found)
        return found
    newest = found or suites.first()
    if newest is None or (version and found is None):
        known = ", ".join(sorted(set(Suite.objects.filter(project=project).values_list("slug", flat=True)))) or "none"
        message = f"{ref!r} is unknown in project {project.slug} (suites: {known})"
    else:
        message = f"{newest} is not ready: {newest.get_state_display().lower()}. {newest.status_message}"
    raise Problem("suite_not_usable", 400, f"The suite {message}.", [{"path": "suite", "message": message}])


def _require_declared(suite: Suite) -> None:
    """Refuse what no import lets in: a suite that does not say what it measures, or keeps no task from training."""
    missing = [
        name
        for name, stated in (
            ("its task distribution", bool(suite.distribution.strip())),
            ("its failure modes", bool(suite.failure_modes)),
            ("a held-out set", suite.tasks.filter(split=SplitName.HELDOUT, state=TaskState.READY).exists()),
        )
        if not stated
    ]
    if missing:
        message = f"{suite} does not declare {' and '.join(missing)}: import it again with that"
        raise Problem("suite_undeclared", 400, f"The suite {message}.", [{"path": "suite", "message": message}])


def ready_tasks(suite: Suite, split: str) -> QuerySet[Task]:
    """Usable tasks of a split in order of import."""
    return suite.tasks.filter(split=split, state=TaskState.READY).order_by("position")


def load_bundle(task: Task) -> TaskBundle:
    """The task's stored content, checked against its hash. No permission is checked here: callers do."""
    return msgspec.json.decode(get_store().get(task.bundle), type=TaskBundle)


def check_progress(suite: Suite) -> CheckProgress:
    """How far the checks of a suite's tasks are. Only counts: no content."""
    states = Counter(suite.tasks.values_list("state", flat=True))
    total = suite.num_to_check or states.total()
    num_done = max(0, total - states[TaskState.UNCHECKED])
    seconds = None
    if num_done and suite.checks_started_at is not None and suite.state == SuiteState.CHECKING:
        spent = (timezone.now() - suite.checks_started_at).total_seconds()
        seconds = spent / num_done * (total - num_done)
    return CheckProgress(
        state=suite.state, done=num_done, total=total, ready=states[TaskState.READY],
        quarantined=states[TaskState.QUARANTINED], left_seconds=seconds,
    )  # fmt: skip


def representativeness(suite: Suite) -> Representativeness:
    """Coverage by split, tag and cluster, quarantine by reason, repetitions. Only counts: no content."""
    rows = list(suite.tasks.values_list("split", "state", "cluster", "tags", "prompt_hash", "quarantine_code"))
    states = Counter((split, state) for split, state, *_ in rows)
    clusters: dict[str, Counter[str]] = {split: Counter() for split in SplitName.values}
    tags: dict[str, Counter[str]] = {}
    for split, _, cluster, names, *_ in rows:
        if cluster:
            clusters[split][cluster] += 1
        for name in names:
            tags.setdefault(name, Counter())[split] += 1
    splits = [
        SplitCounts(
            split,
            states[split, TaskState.READY],
            states[split, TaskState.QUARANTINED],
            states[split, TaskState.UNCHECKED],
            len(clusters[split]),
        )
        for split in SplitName.values
    ]
    prompts = Counter((split, prompt) for split, _, _, _, prompt, _ in rows)
    heldout = clusters[SplitName.HELDOUT]
    return Representativeness(
        splits=[counts for counts in splits if counts.total],
        tags=[TagCounts(tag, dict(counts)) for tag, counts in sorted(tags.items())],
        quarantine_reasons=dict(
            Counter(code for _, state, *_, code in rows if state == TaskState.QUARANTINED).most_common()
        ),
        num_duplicates=sum(count - 1 for count in prompts.values()),
        shared_clusters=sorted(clusters[SplitName.TRAIN].keys() & heldout.keys()),
        largest_cluster_share=max(heldout.values()) / heldout.total() if heldout else None,
    )
