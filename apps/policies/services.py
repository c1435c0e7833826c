"""Writes of policies: register models, create policies, move channels, note what gateways serve."""

import re
from uuid import UUID

from django.db import transaction
from django.db.models import Model
from django.utils import timezone

from apps.accounts.models import Project, User
from apps.accounts.notices import CHANNEL_MOVED, publish_on_commit
from apps.accounts.permissions import Permission, not_found, require
from apps.audit.services import record
from apps.policies.models import BaseModel, Channel, ChannelMove, Gateway, MoveKind, Policy, PolicyKind
from apps.policies.selectors import rollback_target, why_not_served
from ratchet.problems import Problem

_SLUG = re.compile(r"[a-zA-Z0-9._-]{1,80}")


@transaction.atomic
def register_base_model(
    *, slug: str, title: str = "", fingerprint: str = "", licence: str = "", context_length: int = 2048, by: User | None
) -> BaseModel:
    """Make a pretrained model known, or correct what is known of it. Only the platform and superusers."""
    if by is not None and not by.is_superuser:
        raise Problem("forbidden", 403, "Only a superuser registers base models.")
    values = {
        "title": title or slug,
        "fingerprint": fingerprint,
        "licence": licence,
        "context_length": context_length,
    }
    model = BaseModel.objects.select_for_update().filter(slug=slug).first()
    if model is None:
        model = BaseModel.objects.create(slug=slug, **values)
        record(tag="user:basemodel:register", by=by, project=None, subject=model, after={"slug": slug, **values})
        return model
    before = {name: getattr(model, name) for name in values}
    if before["fingerprint"] and fingerprint and before["fingerprint"] != fingerprint:
        raise Problem(
            "fingerprint_changed", 409, f"The weights of {slug} are not those registered: use another slug for them."
        )
    changed = {name: value for name, value in values.items() if value != before[name]}
    if changed:
        BaseModel.objects.filter(pk=model.pk).update(**changed)
        model.refresh_from_db()
        record(tag="user:basemodel:update", by=by, project=None, subject=model, before=before, after=changed)
    return model


@transaction.atomic
def create_policy(
    *,
    project: Project,
    slug: str,
    title: str,
    kind: str,
    base_model: BaseModel,
    by: User | None,
    num_shots: int = 0,
    parent: Policy | None = None,
    adapter: str = "",
    adapter_sha256: str = "",
    adapter_bytes: int = 0,
    run_id: UUID | None = None,
    run_version: int | None = None,
    train_cpu_seconds: float | None = None,
    whole_weights: bool = False,
) -> Policy:
    """A new policy; it never changes afterwards. Raises Problem 400 naming the field, 409 where the slug is taken."""
    require(by, Permission.POLICY_CREATE, project)
    if not _SLUG.fullmatch(slug):
        raise _invalid("slug", "must be 1 to 80 letters, digits, '.', '-' or '_'")
    if kind not in PolicyKind.values:
        raise _invalid("kind", f"{kind!r} is not one of {', '.join(PolicyKind.values)}")
    if bool(adapter) != bool(adapter_sha256):
        raise _invalid("adapter_sha256", "an adapter and its digest come together")
    if whole_weights and not adapter:
        raise _invalid("adapter", "whole weights need the key of their folder")
    if parent is not None and parent.project_id != project.pk:
        raise _invalid("parent", "is a policy of another project")
    if parent is not None and parent.base_model_id != base_model.pk:
        raise _invalid("base_model", f"differs from that of the parent {parent.slug}")
    if Policy.objects.filter(project=project, slug=slug).exists():
        errors = [{"path": "slug", "message": "is taken"}]
        raise Problem("policy_exists", 409, f"Project {project.slug} has a policy {slug!r} already.", errors)
    policy = Policy.objects.create(
        project=project,
        slug=slug,
        title=title or slug,
        kind=kind,
        base_model=base_model,
        num_shots=num_shots,
        parent=parent,
        adapter=adapter,
        adapter_sha256=adapter_sha256,
        adapter_bytes=adapter_bytes,
        run_id=run_id,
        run_version=run_version,
        train_cpu_seconds=train_cpu_seconds,
        whole_weights=whole_weights,
        created_by=by,
    )
    after: dict[str, object] = {"slug": slug, "kind": kind, "base_model": base_model.slug}
    after |= {"adapter_sha256": adapter_sha256, "parent": parent.slug if parent else None}
    after |= {"run_id": run_id, "run_version": run_version}
    after |= {"whole_weights": True} if whole_weights else {}
    _audit(by, "policy:create", project, policy, after=after)
    return policy


@transaction.atomic
def set_channel(*, project: Project, name: str, policy: Policy, by: User | None) -> Channel:
    """Set a new channel up with its first policy. Repeating it changes nothing; another policy is refused (409), and
    so is one's own: nobody lets others be served what they made, without a gate."""
    require(by, Permission.CHANNEL_MOVE, project)
    _check_policy(project, policy)
    channel, _ = Channel.objects.get_or_create(project=project, name=name)
    channel = Channel.objects.select_for_update(of=("self",)).select_related("project", "policy").get(pk=channel.pk)
    if channel.policy_id is None:
        if by is not None and policy.created_by_id == by.pk:
            words = f"You made {policy}: somebody else must set {channel} up with it, or promote it through a gate."
            raise Problem("separation_of_duties", 409, words)
        _move(channel, policy, MoveKind.INITIAL, by, "Set up.", None)
    elif channel.policy_id != policy.pk:
        raise Problem(
            "channel_exists", 409, f"{channel} serves {channel.policy} already: promote through a gate, or roll back."
        )
    return channel


@transaction.atomic
def move_channel(
    *, channel: Channel, to_policy: Policy, kind: str, by: User | None, reason: str, decision_id: UUID | None = None
) -> ChannelMove:
    """Point a channel at another policy; gateways are told on commit. Raises Problem 409 where it serves it already."""
    require(by, Permission.CHANNEL_MOVE, channel.project)
    channel = _lock(channel)
    _check_policy(channel.project, to_policy)
    if channel.policy_id == to_policy.pk:
        raise Problem("channel_unchanged", 409, f"{channel} serves {to_policy} already.")
    return _move(channel, to_policy, kind, by, reason, decision_id)


@transaction.atomic
def rollback_channel(
    *, channel: Channel, by: User | None, reason: str, expected_epoch: int | None = None
) -> ChannelMove:
    """Put the policy back that was accepted before the present one.

    `expected_epoch`: refuse with 412 where somebody has moved the channel since. 409 where nothing is before.
    """
    require(by, Permission.CHANNEL_ROLLBACK, channel.project)
    channel = _lock(channel)
    if expected_epoch is not None and expected_epoch != channel.epoch:
        raise Problem("channel_moved", 412, f"{channel} is at epoch {channel.epoch} now: look again, then decide.")
    target = rollback_target(channel)
    if target is None:
        raise Problem("nothing_before", 409, f"{channel} has no earlier accepted policy to go back to.")
    return _move(channel, target, MoveKind.ROLLBACK, by, reason, None)


@transaction.atomic
def acknowledge(*, gateway: str, project: str, channel: str, epoch: int) -> Gateway:
    """Note that a gateway lives and serves the channel's policy of that epoch. Raises Problem 404, 409."""
    found = Channel.objects.filter(project__slug=project, name=channel).first()
    if found is None:
        raise not_found()
    if epoch > found.epoch:
        raise Problem("epoch_unknown", 409, f"{project}/{channel} is at epoch {found.epoch}, not {epoch}.")
    row, _ = Gateway.objects.get_or_create(name=gateway, channel=found, defaults={"last_seen_at": timezone.now()})
    row = Gateway.objects.select_for_update().get(pk=row.pk)
    # What it serves now, even if that is older than before: a restarted gateway may be behind.
    row.acknowledged_epoch, row.last_seen_at = epoch, timezone.now()
    row.save(update_fields=["acknowledged_epoch", "last_seen_at"])
    return row


def _lock(channel: Channel) -> Channel:
    return Channel.objects.select_for_update(of=("self",)).select_related("project", "policy").get(pk=channel.pk)


def _move(
    channel: Channel, policy: Policy, kind: str, by: User | None, reason: str, decision_id: UUID | None
) -> ChannelMove:
    """Write the move; the caller holds the channel's row."""
    before = channel.policy
    channel.policy, channel.epoch = policy, channel.epoch + 1
    channel.save(update_fields=["policy", "epoch", "updated_at"])
    move = ChannelMove.objects.create(
        channel=channel,
        epoch=channel.epoch,
        kind=kind,
        from_policy=before,
        to_policy=policy,
        by=by,
        reason=reason,
        decision_id=decision_id,
    )
    project = channel.project
    publish_on_commit({"kind": CHANNEL_MOVED, "project": project.slug, "channel": channel.name, "epoch": channel.epoch})
    was = {"policy": before.slug if before else None, "epoch": channel.epoch - 1}
    after = {"channel": channel.name, "policy": policy.slug, "epoch": channel.epoch, "kind": str(kind)}
    evidence = {"adapter_sha256": policy.adapter_sha256, "decision_id": decision_id}
    _audit(by, "channel:move", project, channel, before=was, after=after, reason=reason, evidence=evidence)
    return move


def _check_policy(project: Project, policy: Policy) -> None:
    if policy.project_id != project.pk:
        raise _invalid("policy", "is a policy of another project")
    if refused := why_not_served(policy):
        raise Problem("whole_weights", 409, refused, [{"path": "policy", "message": refused}])


def _audit(by: User | None, action: str, project: Project, subject: Model, **fields: object) -> None:
    source = "user" if by else "system"
    record(tag=f"{source}:{action}", by=by, project=project, subject=subject, **fields)  # type: ignore[arg-type]


def _invalid(path: str, message: str) -> Problem:
    return Problem("invalid", 400, f"{path} {message}.", [{"path": path, "message": message}])
