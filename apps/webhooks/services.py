"""Writes of webhooks: set one up, change it, take it away, try it, send a delivery again."""

import re
from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.accounts.models import Project, User
from apps.accounts.permissions import Permission, not_found, require
from apps.audit.services import record
from apps.webhooks import messaging
from apps.webhooks.addresses import check_url
from apps.webhooks.models import Delivery, DeliveryState, Webhook
from apps.webhooks.signing import secret_of
from ratchet.commits import after_commit
from ratchet.problems import Problem

MAX_PER_PROJECT = 20
TEST = "webhook:test"
_EVENT = re.compile(r"\*|([a-z_]+|\*):([a-z_]+|\*)")


@transaction.atomic
def create_webhook(*, project: Project, url: str, events: Sequence[str], by: User | None) -> Webhook:
    """Tell the address of the project's events from now on. Raises Problem naming every field that is wrong."""
    require(by, Permission.WEBHOOK_MANAGE, project)
    _check(url, events)
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if project.webhooks.count() >= MAX_PER_PROJECT:
        raise Problem("too_many_webhooks", 409, f"A project has at most {MAX_PER_PROJECT} webhooks: remove one first.")
    webhook = Webhook(project=project, url=url, events=sorted(set(events)), created_by=by)
    _save(webhook)
    record(tag="user:webhook:create", by=by, project=project, subject=webhook, after=_facts(webhook))
    return webhook


@transaction.atomic
def change_webhook(*, webhook: Webhook, by: User | None, **changes: Any) -> Webhook:
    """Change `url`, `events` or `enabled`. What waits to be sent goes to the new address; off, it waits."""
    require(by, Permission.WEBHOOK_MANAGE, webhook.project)
    webhook = lock(webhook)
    before = _facts(webhook)
    for name in ("url", "events", "enabled"):
        if name in changes:
            setattr(webhook, name, sorted(set(changes[name])) if name == "events" else changes[name])
    _check(changes.get("url"), changes.get("events"))
    _save(webhook)
    if before != (after := _facts(webhook)):
        record(tag="user:webhook:change", by=by, project=webhook.project, subject=webhook, before=before, after=after)
    return webhook


@transaction.atomic
def rotate_secret(*, webhook: Webhook, by: User | None) -> str:
    """A new secret in place of the present one, at once. Returns it; it is never shown again."""
    require(by, Permission.WEBHOOK_MANAGE, webhook.project)
    webhook = lock(webhook)
    webhook.secret_version += 1
    webhook.save(update_fields=["secret_version", "updated_at"])
    after = {"secret_version": webhook.secret_version}
    record(tag="user:webhook:rotate", by=by, project=webhook.project, subject=webhook, after=after)
    return secret_of(webhook.pk, webhook.secret_version)


@transaction.atomic
def delete_webhook(*, webhook: Webhook, by: User | None) -> None:
    """Take a webhook away with its delivery log."""
    require(by, Permission.WEBHOOK_MANAGE, webhook.project)
    webhook = lock(webhook)
    record(tag="user:webhook:delete", by=by, project=webhook.project, subject=webhook, before=_facts(webhook))
    webhook.delete()


@transaction.atomic
def send_test(*, webhook: Webhook, by: User) -> Delivery:
    """Send a message that only says that it is a test, whatever the webhook listens to."""
    require(by, Permission.WEBHOOK_MANAGE, webhook.project)
    payload = {
        "type": TEST, "source": "user", "at": timezone.now().isoformat(), "project": webhook.project.slug,
        "actor": by.get_username(), "subject": {"type": "webhooks.webhook", "id": str(webhook.pk)},
        "audit_sequence": None,  # a test is no event of the audit trail
    }  # fmt: skip
    return enqueue(webhook, TEST, payload)


@transaction.atomic
def redeliver(*, delivery: Delivery, by: User) -> Delivery:
    """Send a finished delivery again, as a new one with the same content."""
    require(by, Permission.WEBHOOK_MANAGE, delivery.webhook.project)
    if delivery.state == DeliveryState.PENDING:
        raise Problem("delivery_pending", 409, "This delivery is still being tried: wait for it.")
    if not delivery.webhook.enabled:
        raise Problem("webhook_disabled", 409, "The webhook is switched off: switch it on first.")
    return enqueue(delivery.webhook, delivery.event_type, delivery.payload, redelivery_of=delivery)


def enqueue(webhook: Webhook, event_type: str, payload: dict[str, Any], **fields: Any) -> Delivery:
    """Write a delivery and have it sent on commit."""
    delivery = Delivery.objects.create(
        webhook=webhook, event_type=event_type, payload=payload, next_attempt_at=timezone.now(), **fields
    )
    after_commit(messaging.request_delivery, delivery.pk)
    return delivery


def _check(url: str | None, events: Sequence[str] | None) -> None:
    """Raise Problem naming what is wrong; None is not looked at: it stays, and may be what is switched off."""
    errors = [{"path": "url", "message": words}] if url is not None and (words := check_url(url)) else []
    if events is not None and not events:
        errors.append({"path": "events", "message": "name at least one, e.g. run:* or gate:verdict"})
    errors += [
        {"path": "events", "message": f"{event!r} is not of the form subject:action, with * for any"}
        for event in events or ()
        if not _EVENT.fullmatch(event)
    ]
    if errors:
        raise Problem("invalid", 400, "The webhook cannot be set up like this.", errors)


def _save(webhook: Webhook) -> None:
    try:
        with transaction.atomic():
            webhook.save()
    except IntegrityError as error:
        errors = [{"path": "url", "message": "is a webhook of this project already"}]
        raise Problem("webhook_exists", 409, "There is a webhook with this address already.", errors) from error


def _facts(webhook: Webhook) -> dict[str, Any]:
    return {"url": webhook.url, "events": list(webhook.events), "enabled": webhook.enabled}


def lock(webhook: Webhook) -> Webhook:
    """The row as it is now, held. Raises Problem 404 where somebody took it away meanwhile."""
    found = Webhook.objects.select_for_update(of=("self",)).select_related("project").filter(pk=webhook.pk).first()
    if found is None:
        raise not_found()
    return found
