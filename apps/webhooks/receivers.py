"""What webhooks are told of: every event of the audit trail, in the transaction that writes it."""

from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver

from apps.audit.models import AuditEvent
from apps.webhooks.delivering import announce


@receiver(post_save, sender=AuditEvent)
def _announce(sender: type[AuditEvent], instance: AuditEvent, created: bool, **_: Any) -> None:
    if created:
        announce(instance)
