"""Messages of reviews to their own jobs. Call from `transaction.on_commit`."""

from uuid import UUID

from gpu_workers.contracts import queues
from ratchet.celery import app

SAMPLE = "apps.reviews.jobs.sample"


def request_sampling(group_id: UUID) -> None:
    app.send_task(SAMPLE, args=[str(group_id)], queue=queues.CONTROL)
