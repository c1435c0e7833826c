"""Reads of reviews: what a person may label, the blind item, progress, rates of the verifier."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from apps.accounts.models import User
from apps.accounts.permissions import Actor, Permission, not_found, permitted_projects
from apps.reviews.estimators import Sampled, VerifierRates, estimate_rates
from apps.reviews.models import ItemState, Label, LabelVerdict, ReviewItem
from apps.runs.models import Run
from apps.tasks.models import Suite
from apps.tasks.selectors import OPEN_SPLITS, load_bundle
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, TurnRecord
from gpu_workers.contracts.store import StoreError
from ratchet.store import get_store


@dataclass(frozen=True)
class BlindTurn:
    """One message after the prompt: what the policy wrote, or what a tool answered."""

    role: str
    text: str
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    result: str = ""
    ok: bool = True
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class BlindItem:
    """An item as its reviewer sees it: no verdict, no reason, no policy, no other label, not why it was drawn."""

    id: UUID
    project: str
    suite: str
    reserved_until: Any
    prompt: list[dict[str, str]]
    tools: list[dict[str, Any]]
    turns: list[BlindTurn]
    answer: str
    sandbox_log: str
    problem: str = ""  # what of it could not be loaded


@dataclass(frozen=True)
class KindRates:
    """Rates of the verifier on episodes of one kind of policy."""

    policy_kind: str
    rates: VerifierRates


@dataclass(frozen=True)
class ReviewSummary:
    num_open: int
    num_labelled: int
    num_skipped: int
    num_cannot_tell: int
    num_waiting_for_me: int
    labels_by_me: int
    rates: VerifierRates
    by_kind: list[KindRates]


def visible_items(user: Actor, project_slug: str = "") -> QuerySet[ReviewItem]:
    """Items of projects in which the user may read reviews."""
    projects = permitted_projects(user, Permission.REVIEW_READ)
    if project_slug:
        projects = projects.filter(slug=project_slug)
    return ReviewItem.objects.filter(project__in=projects.values("pk"))


def labellable_items(user: User, project_slug: str = "") -> QuerySet[ReviewItem]:
    """Open items the user may judge: the right to label, held-out content only with its own right, and never of
    a run or gate that they submitted, nor twice."""
    projects = permitted_projects(user, Permission.REVIEW_LABEL)
    if project_slug:
        projects = projects.filter(slug=project_slug)
    heldout = permitted_projects(user, Permission.HELDOUT_READ)
    own = ReviewItem.objects.filter(_submitted_by(user), pk=OuterRef("pk"))
    labelled = Label.objects.filter(item=OuterRef("pk"), reviewer=user, undone_at__isnull=True)
    return (
        ReviewItem.objects.filter(state=ItemState.OPEN, project__in=projects.values("pk"))
        .filter(Q(episode__group__task__split__in=OPEN_SPLITS) | Q(project__in=heldout.values("pk")))
        .filter(~Exists(own), ~Exists(labelled))
        .select_related("project")
    )


def visible_labels(user: User) -> QuerySet[Label]:
    """One's own labels, and all of the projects in which one manages reviews; what people wrote of held-out episodes
    only with the right to those."""
    managed = permitted_projects(user, Permission.REVIEW_MANAGE)
    heldout = permitted_projects(user, Permission.HELDOUT_READ)
    readable = permitted_projects(user, Permission.REVIEW_READ)
    rows = Label.objects.filter(item__project__in=readable.values("pk"))
    rows = rows.filter(Q(reviewer=user) | Q(item__project__in=managed.values("pk")))
    opened = Q(item__episode__group__task__split__in=OPEN_SPLITS) | Q(item__project__in=heldout.values("pk"))
    return (
        rows.filter(opened)
        .select_related("reviewer", "item__project", "item__episode__group__task__suite")
        .order_by("-id")
    )


def submitted(user: User, item: ReviewItem) -> bool:
    """Whether the user submitted what the item's episode is of: whoever did never judges it."""
    return ReviewItem.objects.filter(_submitted_by(user), pk=item.pk).exists()


def _submitted_by(user: User) -> Q:
    """Episodes of a run or evaluation that the user submitted, or of a policy or checkpoint that came of one."""
    item = "episode__group__evaluation_item__"
    runs = Run.objects.filter(created_by=user)
    return (
        Q(episode__group__run__created_by=user)
        | Q(**{f"{item}evaluation__created_by": user})
        | Q(**{f"{item}evaluation__run__created_by": user})
        | Q(**{f"{item}arm__checkpoint__run__created_by": user})
        | Q(**{f"{item}arm__policy__created_by": user})
        | Q(**{f"{item}arm__policy__run_id__in": runs.values("pk")})
    )


def find_item(user: User, item_id: UUID | str) -> ReviewItem:
    """One item of a project in which the user may label. Raises Problem 404."""
    projects = permitted_projects(user, Permission.REVIEW_LABEL)
    items = ReviewItem.objects.filter(project__in=projects.values("pk")).select_related("project")
    item = items.filter(pk=item_id).first()
    if item is None:
        raise not_found()
    return item


def blind_item(item: ReviewItem) -> BlindItem:
    """What the reviewer sees of an item they hold; `services.show_item` writes that down.

    Worked examples are left out: they would tell the policy apart.
    """
    episode = item.episode
    group = episode.group
    problem, log = "", ""
    prompt: list[dict[str, str]] = [{"role": "user", "content": group.task.prompt_preview}]
    tools: list[dict[str, Any]] = []
    turns: list[BlindTurn] = []
    try:
        bundle = load_bundle(group.task)
        prompt = [{"role": message.role, "content": message.content} for message in bundle.prompt]
        tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in bundle.tools]
    except (StoreError, ValueError) as error:
        problem = f"The task could not be loaded: {error}"
    try:
        record = _record(group.transcript, episode.index)
        turns = [_blind_turn(turn) for turn in _after_prompt(record.turns)]
        log = record.sandbox.log
    except (StoreError, ValueError, LookupError) as error:
        problem = f"{problem} The episode's turns could not be loaded: {error}".strip()
    return BlindItem(
        id=item.pk,
        project=item.project.slug,
        suite=group.task.suite.title,
        reserved_until=item.reserved_until,
        prompt=prompt,
        tools=tools,
        turns=turns,
        answer=episode.answer,
        sandbox_log=log,
        problem=problem,
    )


def _record(transcript: str, index: int) -> EpisodeRecord:
    if not transcript:
        raise LookupError("no transcript was stored")
    episodes = GroupTranscript.decode(get_store().get(transcript)).episodes
    return next(record for record in episodes if record.index == index)


def _after_prompt(turns: list[TurnRecord]) -> list[TurnRecord]:
    """From the first turn that was sampled; prompts and worked examples have no finish reason."""
    start = next((number for number, turn in enumerate(turns) if turn.finish_reason), None)
    return turns[start:] if start is not None else []


def _blind_turn(turn: TurnRecord) -> BlindTurn:
    call = turn.tool_call
    if call is None:
        return BlindTurn(turn.role, turn.text)
    return BlindTurn(
        turn.role, turn.text, call.name, call.arguments, call.result, call.ok, call.error, call.duration_seconds
    )


def num_waiting(user: User, project_slug: str = "") -> int:
    """Items the user could label now, for the home page."""
    return labellable_items(user, project_slug).count()


def summary(user: User, project_slug: str = "") -> ReviewSummary:
    """Progress and weighted rates of the verifier over the projects the user may see."""
    items = visible_items(user, project_slug)
    states = dict(items.order_by().values_list("state").annotate(n=Count("pk")))
    labels = Label.objects.filter(item__in=items.values("pk"), undone_at__isnull=True)
    sampled = _sampled(items)
    kinds = sorted({kind for kind, _ in sampled})
    return ReviewSummary(
        num_open=states.get(ItemState.OPEN, 0),
        num_labelled=states.get(ItemState.LABELLED, 0),
        num_skipped=states.get(ItemState.SKIPPED, 0),
        num_cannot_tell=labels.filter(verdict=LabelVerdict.CANNOT_TELL).count(),
        num_waiting_for_me=labellable_items(user, project_slug).count(),
        labels_by_me=labels.filter(reviewer=user).count(),
        rates=estimate_rates([item for _, item in sampled]),
        by_kind=[KindRates(kind, estimate_rates([item for k, item in sampled if k == kind])) for kind in kinds],
    )


def verifier_rates(suite: Suite) -> VerifierRates:
    """Rates of a suite's verifier from all labels on its episodes. No right is checked: only rates leave."""
    items = ReviewItem.objects.filter(episode__group__task__suite=suite)
    return estimate_rates([item for _, item in _sampled(items)])


def _sampled(items: QuerySet[ReviewItem]) -> list[tuple[str, Sampled]]:
    """Every item with the kind of its policy and the first label in force; "cannot tell" counts as none."""
    truth: dict[UUID, bool] = {}
    told = Label.objects.filter(item__in=items.values("pk"), undone_at__isnull=True)
    for item_id, verdict in (
        told.exclude(verdict=LabelVerdict.CANNOT_TELL).order_by("id").values_list("item_id", "verdict")
    ):
        truth.setdefault(item_id, verdict == LabelVerdict.PASS)
    rows = items.order_by("id").values_list("id", "stratum", "inclusion_probability", "episode__verdict")
    return [
        (stratum.split("|")[2], Sampled(stratum, verdict == "pass", probability, truth.get(key)))
        for key, stratum, probability, verdict in rows
    ]
