"""Messages of evaluations to their own jobs. Call from `transaction.on_commit`."""

from uuid import UUID

from gpu_workers.contracts import queues
from ratchet.celery import app

ADVANCE = "apps.evaluations.jobs.advance"
CHOOSE = "apps.evaluations.jobs.choose_checkpoint"


def request_advance(evaluation_id: UUID) -> None:
    app.send_task(ADVANCE, args=[str(evaluation_id)], queue=queues.CONTROL, expires=60)


def request_choice(run_id: UUID) -> None:
    app.send_task(CHOOSE, args=[str(run_id)], queue=queues.CONTROL, expires=60)
