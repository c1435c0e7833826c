"""Reads of policies: what a person may see, lineage, channel history, how far gateways have followed."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from apps.accounts.models import Project
from apps.accounts.permissions import Actor, Permission, not_found, permitted_projects
from apps.policies.models import BaseModel, Channel, ChannelMove, Gateway, MoveKind, Policy
from ratchet.problems import Problem

GATEWAY_ALIVE = timedelta(seconds=30)  # gateways say hello every 10 s or more often
_MAX_LINEAGE = 200


@dataclass(frozen=True)
class ChannelStatus:
    """A channel with what serves it. `complete`: every living gateway serves the present epoch; None: none lives."""

    channel: Channel
    gateways: list[Gateway]
    complete: bool | None
    rollback_to: Policy | None


@dataclass(frozen=True)
class Lineage:
    """Ancestors from the first to the parent, and direct descendants."""

    ancestors: list[Policy]
    children: list[Policy]


def base_models() -> QuerySet[BaseModel]:
    """Every registered base model; they belong to no project."""
    return BaseModel.objects.order_by("-id")


def find_base_model(slug: str) -> BaseModel:
    """The model of this slug. Raises Problem 400 that names the known ones."""
    model = BaseModel.objects.filter(slug=slug).first()
    if model is None:
        known = ", ".join(BaseModel.objects.order_by("slug").values_list("slug", flat=True)) or "none yet"
        message = f"{slug!r} is unknown; registered base models: {known}"
        raise Problem(
            "unknown_base_model", 400, f"The base model {message}.", [{"path": "base_model", "message": message}]
        )
    return model


def visible_policies(user: Actor) -> QuerySet[Policy]:
    """Policies of the projects in which the user may read them, newest first."""
    projects = permitted_projects(user, Permission.POLICY_READ)
    policies = Policy.objects.filter(project__in=projects.values("pk"))
    return policies.select_related("project", "base_model", "parent", "created_by").order_by("-id")


def find_policy(user: Actor, policy_id: UUID | str) -> Policy:
    """One policy the user may see. Raises Problem 404."""
    policy = visible_policies(user).filter(pk=policy_id).first()
    if policy is None:
        raise not_found()
    return policy


def resolve_policy(project: Project, slug: str) -> Policy:
    """The project's policy of this slug. Raises Problem 400 that names the known ones."""
    policy = Policy.objects.filter(project=project, slug=slug).select_related("base_model", "project").first()
    if policy is None:
        slugs = Policy.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)
        message = f"{slug!r} is unknown in project {project.slug}; policies: {', '.join(slugs) or 'none yet'}"
        raise Problem("unknown_policy", 400, f"The policy {message}.", [{"path": "policy", "message": message}])
    return policy


def lineage(by: Actor, policy: Policy) -> Lineage:
    """Where a policy came from and what was made of it."""
    visible = visible_policies(by)
    ancestors: list[Policy] = []
    parent_id = policy.parent_id
    while parent_id is not None and len(ancestors) < _MAX_LINEAGE:
        parent = visible.filter(pk=parent_id).first()
        if parent is None:
            break
        ancestors.append(parent)
        parent_id = parent.parent_id
    return Lineage(ancestors[::-1], list(visible.filter(parent=policy).order_by("id")))


def visible_channels(user: Actor) -> QuerySet[Channel]:
    """Channels of the projects in which the user may read them."""
    projects = permitted_projects(user, Permission.CHANNEL_READ)
    channels = Channel.objects.filter(project__in=projects.values("pk"))
    return channels.select_related("project", "policy__base_model").order_by("-id")


def find_channel(user: Actor, project: str, name: str) -> Channel:
    """One channel the user may see. Raises Problem 404."""
    channel = visible_channels(user).filter(project__slug=project, name=name).first()
    if channel is None:
        raise not_found()
    return channel


def channel_history(by: Actor, channel: Channel) -> QuerySet[ChannelMove]:
    """Every move of a channel, newest first."""
    if not visible_channels(by).filter(pk=channel.pk).exists():
        raise not_found()
    return channel.moves.select_related("from_policy", "to_policy", "by").order_by("-epoch")


def channel_status(channel: Channel) -> ChannelStatus:
    """Which gateways live and whether all of them serve the present epoch. Callers have checked the right."""
    living = list(channel.gateways.filter(last_seen_at__gte=timezone.now() - GATEWAY_ALIVE).order_by("name"))
    complete = all(gateway.acknowledged_epoch == channel.epoch for gateway in living) if living else None
    return ChannelStatus(channel, living, complete, rollback_target(channel))


def rollback_target(channel: Channel) -> Policy | None:
    """The policy accepted before the present one. A rollback takes the newest acceptance back, and only that."""
    accepted: list[Policy] = []
    for move in channel.moves.select_related("to_policy").order_by("epoch"):
        if move.kind == MoveKind.ROLLBACK:
            accepted.pop()
        else:
            accepted.append(move.to_policy)
    return accepted[-2] if len(accepted) > 1 else None


def why_not_served(policy: Policy) -> str:
    """Why no channel can serve a policy, and what to do instead; empty where one can."""
    if not policy.whole_weights:
        return ""
    return (
        f"{policy} keeps whole weights, and channels serve adapters on engines that other policies share. Serve its "
        f"folder {policy.adapter} yourself (a Hugging Face model), or train an adapter: trainer.update lora."
    )


def served_channels() -> QuerySet[Channel]:
    """Every channel with a policy, for gateways; they hold the worker secret, no user is asked for."""
    return (
        Channel.objects.filter(policy__isnull=False)
        .select_related("project", "policy__base_model")
        .order_by("project__slug", "name")
    )
