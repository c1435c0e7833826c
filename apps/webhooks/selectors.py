"""Reads of webhooks and their delivery logs: only for who manages them, since addresses may hold secrets."""

from uuid import UUID

from django.db.models import QuerySet

from apps.accounts.permissions import Actor, Permission, not_found, permitted_projects
from apps.webhooks.models import Delivery, Webhook


def visible_webhooks(user: Actor) -> QuerySet[Webhook]:
    """Webhooks of the projects in which the user manages them, newest first."""
    projects = permitted_projects(user, Permission.WEBHOOK_MANAGE)
    return (
        Webhook.objects.filter(project__in=projects.values("pk"))
        .select_related("project", "created_by")
        .order_by("-id")
    )


def find_webhook(user: Actor, webhook_id: UUID | str) -> Webhook:
    """One webhook that the user manages. Raises Problem 404."""
    webhook = visible_webhooks(user).filter(pk=webhook_id).first()
    if webhook is None:
        raise not_found()
    return webhook


def deliveries_of(webhook: Webhook) -> QuerySet[Delivery]:
    """The log of a webhook that the caller has found, newest first."""
    return webhook.deliveries.order_by("-id")


def find_delivery(user: Actor, delivery_id: UUID | str) -> Delivery:
    """One delivery with its attempts. Raises Problem 404."""
    rows = Delivery.objects.filter(pk=delivery_id, webhook__in=visible_webhooks(user).values("pk"))
    delivery = rows.select_related("webhook__project").prefetch_related("attempts").first()
    if delivery is None:
        raise not_found()
    return delivery
