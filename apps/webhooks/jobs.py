"""Celery jobs of webhooks: one attempt at one delivery, and the tick that finds what is due."""

from celery import shared_task

from apps.webhooks import delivering, messaging


@shared_task(name=messaging.DELIVER)
def deliver(delivery_id: str) -> None:
    delivering.deliver(delivery_id)


@shared_task(name="apps.webhooks.jobs.tick")
def tick() -> None:
    """Send what is due: a first message may be lost, and back-off is kept in the database."""
    for delivery_id in delivering.due().values_list("pk", flat=True):
        messaging.request_delivery(delivery_id)


@shared_task(name="apps.webhooks.jobs.sweep")
def sweep() -> None:
    delivering.sweep()
