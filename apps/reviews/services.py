"""Writes of reviews: sample items, reserve the next one, label, skip, undo. No label is ever changed or lost."""

from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import Permission, require
from apps.audit.services import record
from apps.reviews.models import ItemState, Label, LabelVerdict, ReviewItem
from apps.reviews.sampling import Candidate, draw
from apps.reviews.selectors import BlindItem, blind_item, labellable_items, submitted
from apps.runs.models import Group
from apps.tasks.models import Suite
from apps.tasks.selectors import is_protected
from apps.tasks.services import note_heldout_look
from gpu_workers.contracts.enums import Purpose
from gpu_workers.contracts.runspec import Algorithm
from ratchet.problems import Problem

RESERVATION = timedelta(minutes=10)
_MAX_COMMENT = 4000


def sample_group(group: Group) -> int:
    """Draw items from a stored group's episodes. Returns how many are new; repeating it adds none."""
    training = group.purpose == Purpose.TRAIN
    kind = _policy_kind(group)
    rows = []
    for episode in group.episodes.all():
        drawn = draw(
            Candidate(
                episode.pk, episode.verdict, episode.audit_verdict, episode.tamper, kind, training,
                suspected=bool(episode.flags),
            )
        )  # fmt: skip
        if drawn is not None:
            rows.append(
                ReviewItem(
                    project_id=group.project_id,
                    episode=episode,
                    stratum=drawn.stratum,
                    inclusion_probability=drawn.inclusion_probability,
                    why=drawn.why,
                    position=drawn.position,
                )
            )
    before = ReviewItem.objects.filter(episode__group=group).count() if rows else 0
    ReviewItem.objects.bulk_create(rows, ignore_conflicts=True)
    return max(0, len(rows) - before)


def _policy_kind(group: Group) -> str:
    """Kind of the policy that answered."""
    if group.run is not None:
        return "reinforced"
    item = getattr(group, "evaluation_item", None)
    if item is None:
        return "unknown"
    if item.arm.policy is not None:
        return str(item.arm.policy.kind)
    assert item.arm.checkpoint is not None
    kind = item.arm.checkpoint.run.spec.get("algorithm", {}).get("kind")
    return "supervised" if kind == Algorithm.SFT else "reinforced"


@transaction.atomic
def next_item(*, by: User, project_slug: str = "") -> ReviewItem | None:
    """Reserve the next item for ten minutes; the one already reserved comes again. None: nothing is left."""
    items = labellable_items(by, project_slug)
    now = timezone.now()
    mine = items.filter(reserved_by=by, reserved_until__gt=now).order_by("position").first()
    free = items.filter(reserved_until__isnull=True) | items.filter(reserved_until__lte=now)
    candidate = mine or free.order_by("position").select_for_update(skip_locked=True, of=("self",)).first()
    if candidate is None:
        return None
    _reserve(candidate, by)
    return candidate


@transaction.atomic
def show_item(*, item: ReviewItem, by: User) -> BlindItem:
    """The item as its reviewer sees it; a look at a held-out task is written down. Raises Problem 403 without
    the right to it."""
    task = item.episode.group.task
    if is_protected(task.split):
        note_heldout_look(suite=task.suite, by=by, task_keys=[task.key])
    return blind_item(item)


def note_labels_shown(*, labels: Sequence[Label], by: User) -> None:
    """What people wrote of held-out episodes may quote them: who is shown it is written down."""
    shown: dict[Suite, set[str]] = {}
    for label in labels:
        task = label.item.episode.group.task
        if is_protected(task.split) and label.comment:
            shown.setdefault(task.suite, set()).add(task.key)
    for suite, keys in shown.items():
        note_heldout_look(suite=suite, by=by, task_keys=sorted(keys))


def _reserve(item: ReviewItem, by: User) -> None:
    item.reserved_by, item.reserved_until = by, timezone.now() + RESERVATION
    item.save(update_fields=["reserved_by", "reserved_until"])


@transaction.atomic
def label_item(
    *, item: ReviewItem, by: User, verdict: str, hacking: bool = False, comment: str = "", seconds: float | None = None
) -> Label:
    """Save a person's verdict on an item they hold. The same label again changes nothing; another one is refused.

    Raises Problem 409 when somebody else holds the item by now, 400 for an unknown verdict.
    """
    if verdict not in LabelVerdict.values:
        message = f"{verdict!r} is not one of {', '.join(LabelVerdict.values)}"
        raise Problem("invalid", 400, f"verdict: {message}.", [{"path": "verdict", "message": message}])
    item = _lock(item, by)
    if submitted(by, item):
        raise Problem("separation_of_duties", 403, "Somebody else must label this: you submitted what it is of.")
    existing = item.labels.filter(reviewer=by, undone_at__isnull=True).first()
    if existing is not None:
        if (existing.verdict, existing.hacking) == (verdict, hacking):
            return existing
        raise Problem("labelled_already", 409, "You have labelled this item: undo that label first.")
    _check_held(item, by)
    label = Label.objects.create(
        item=item, reviewer=by, verdict=verdict, hacking=hacking, comment=comment[:_MAX_COMMENT], seconds=seconds
    )
    _move(item, ItemState.LABELLED)
    after = {"verdict": verdict, "hacking": hacking, "item": str(item.pk)}
    record(tag="user:review:label", by=by, project=item.project, subject=label, after=after)
    return label


@transaction.atomic
def skip_item(*, item: ReviewItem, by: User, reason: str) -> ReviewItem:
    """Put an item aside with a reason. Raises Problem 409 when somebody else holds it by now."""
    if not reason.strip():
        errors = [{"path": "reason", "message": "is empty"}]
        raise Problem("invalid", 400, "Say why you skip this item.", errors)
    item = _lock(item, by)
    _check_held(item, by)
    item.skip_reason, item.skipped_by = reason.strip()[:200], by
    item.save(update_fields=["skip_reason", "skipped_by"])
    _move(item, ItemState.SKIPPED)
    record(tag="user:review:skip", by=by, project=item.project, subject=item, reason=item.skip_reason)
    return item


@transaction.atomic
def undo_label(*, item: ReviewItem, by: User) -> ReviewItem:
    """Take back one's own label (it is kept, stamped) or skip, and hold the item again. Raises Problem 409."""
    item = _lock(item, by)
    label = item.labels.filter(reviewer=by, undone_at__isnull=True).first()
    if label is None and item.skipped_by_id != by.pk:
        raise Problem("nothing_to_undo", 409, "You have neither labelled nor skipped this item.")
    if label is not None:
        label.undone_at = timezone.now()
        label.save(update_fields=["undone_at"])
    item.skip_reason, item.skipped_by = "", None
    item.save(update_fields=["skip_reason", "skipped_by"])
    _move(item, ItemState.OPEN)
    _reserve(item, by)
    record(tag="user:review:undo", by=by, project=item.project, subject=label or item)
    return item


def _lock(item: ReviewItem, by: User) -> ReviewItem:
    require(by, Permission.REVIEW_LABEL, item.project)
    if is_protected(item.episode.group.task.split):
        require(by, Permission.HELDOUT_READ, item.project)
    rows = ReviewItem.objects.select_for_update(of=("self",)).select_related("project")
    return rows.get(pk=item.pk)


def _check_held(item: ReviewItem, by: User) -> None:
    """An expired reservation still counts until somebody else takes the item: what was typed is not lost."""
    if item.state != ItemState.OPEN:
        raise Problem("item_closed", 409, f"The item is {item.state} already: ask for the next one.")
    if item.reserved_by_id != by.pk:
        raise Problem("reservation_lost", 409, "Somebody else holds this item by now: ask for the next one.")


def _move(item: ReviewItem, state: ItemState) -> None:
    item.state, item.reserved_by, item.reserved_until = state, None, None
    item.save(update_fields=["state", "reserved_by", "reserved_until"])
