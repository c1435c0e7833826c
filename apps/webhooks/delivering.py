"""The life of a delivery: an event becomes one for each webhook that listens, and it is tried until it arrives."""

import json
import time
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.audit.models import AuditEvent
from apps.webhooks.models import Delivery, DeliveryAttempt, DeliveryState, Webhook
from apps.webhooks.sending import Answer, post
from apps.webhooks.services import enqueue
from apps.webhooks.signing import secret_of, signature
from ratchet import __version__

# Seconds from one attempt to the next; after the last one it is given up: about a day and a half in all.
BACK_OFF = (10, 60, 300, 1800, 7200, 18_000, 36_000, 72_000)
LEASE = timedelta(minutes=2)  # a worker that died gives its delivery back
KEPT = 1000  # finished deliveries of a webhook that its log keeps


def announce(event: AuditEvent) -> int:
    """Write a delivery for every webhook of the event's project that listens. Call it in the event's transaction.

    The message names what happened and to what, never what was in it: who receives it may hold no right at all.
    """
    if event.project_id is None:
        return 0
    source, _, event_type = event.tag.partition(":")
    hooks = [
        hook
        for hook in Webhook.objects.filter(project_id=event.project_id, enabled=True).select_related("project")
        if any(matches(pattern, event_type) for pattern in hook.events)
    ]
    for hook in hooks:
        payload = {
            "type": event_type, "source": source, "at": event.at.isoformat(), "project": hook.project.slug,
            "actor": event.actor_name, "subject": {"type": event.subject_type, "id": event.subject_id},
            "audit_sequence": event.sequence,
        }  # fmt: skip
        enqueue(hook, event_type, payload)
    return len(hooks)


def matches(pattern: str, event_type: str) -> bool:
    """Whether `run:*` and the like name the event."""
    if pattern == "*":
        return True
    wanted, got = pattern.split(":"), event_type.split(":")
    return all(part in ("*", word) for part, word in zip(wanted, got, strict=True))


def due(limit: int = 100) -> QuerySet[Delivery]:
    """Deliveries whose time has come, oldest first; those of a webhook that is switched off wait."""
    rows = Delivery.objects.filter(state=DeliveryState.PENDING, next_attempt_at__lte=timezone.now())
    return rows.filter(webhook__enabled=True).order_by("next_attempt_at")[:limit]


def deliver(delivery_id: UUID | str) -> Answer | None:
    """Try once. None: it is not due, or another worker has it. No row stays locked while the other side answers."""
    delivery = _take(delivery_id)
    if delivery is None:
        return None
    webhook = delivery.webhook
    body = json.dumps(delivery.payload, separators=(",", ":")).encode()
    now = int(time.time())
    secret = secret_of(webhook.pk, webhook.secret_version)
    headers: dict[bytes | str, bytes | str] = {
        "Content-Type": "application/json",
        "User-Agent": f"Ratchet/{__version__}",
        "webhook-id": str(delivery.pk),
        "webhook-timestamp": str(now),
        "webhook-signature": signature(secret, str(delivery.pk), now, body),
    }
    answer = post(webhook.url, body, headers)
    _note(delivery, answer)
    return answer


@transaction.atomic
def _take(delivery_id: UUID | str) -> Delivery | None:
    rows = Delivery.objects.select_for_update(skip_locked=True, of=("self",)).select_related("webhook")
    now = timezone.now()
    delivery = rows.filter(
        pk=delivery_id, state=DeliveryState.PENDING, next_attempt_at__lte=now, webhook__enabled=True
    ).first()
    if delivery is None:
        return None
    if delivery.num_attempts > len(BACK_OFF):  # of the last attempt nothing was noted: whoever made it died
        delivery.state, delivery.next_attempt_at, delivery.finished_at = DeliveryState.FAILED, None, now
        delivery.save(update_fields=["state", "next_attempt_at", "finished_at"])
        return None
    delivery.num_attempts += 1
    delivery.next_attempt_at = now + LEASE
    delivery.save(update_fields=["num_attempts", "next_attempt_at"])
    return delivery


@transaction.atomic
def _note(delivery: Delivery, answer: Answer) -> None:
    """Write the attempt down, and when the next one is."""
    number = delivery.num_attempts
    row = Delivery.objects.select_for_update().filter(pk=delivery.pk, num_attempts=number).first()
    if row is None or row.state != DeliveryState.PENDING:
        return  # it took longer than its lease, and another attempt was made, or the webhook is gone
    DeliveryAttempt.objects.create(delivery=row, number=number, **vars(answer))
    now = timezone.now()
    if not answer.delivered and number <= len(BACK_OFF):
        row.next_attempt_at = now + timedelta(seconds=BACK_OFF[number - 1])
    else:
        row.state = DeliveryState.DELIVERED if answer.delivered else DeliveryState.FAILED
        row.next_attempt_at, row.finished_at = None, now
    row.save(update_fields=["state", "next_attempt_at", "finished_at"])


def sweep() -> int:
    """Cut each webhook's log of finished deliveries down to the newest `KEPT`. Returns how many went."""
    gone = 0
    for webhook in Webhook.objects.all():
        finished = webhook.deliveries.exclude(state=DeliveryState.PENDING).order_by("-id")
        oldest = finished.values_list("pk", flat=True)[KEPT : KEPT + 1].first()
        if oldest is not None:
            gone += finished.filter(pk__lte=oldest).delete()[0]
    return gone
