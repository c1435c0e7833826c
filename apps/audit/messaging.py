"""Messages of the audit trail to its own job. Call from `transaction.on_commit`."""

from uuid import UUID

from gpu_workers.contracts import queues
from ratchet.celery import app

ANCHOR = "apps.audit.jobs.anchor"


def request_anchor(project_id: UUID | None, sequence: int, digest: str, signature: str) -> None:
    """The head itself travels: what is done to the database meanwhile does not change it."""
    arguments = [str(project_id) if project_id else None, sequence, digest, signature]
    app.send_task(ANCHOR, args=arguments, queue=queues.CONTROL)
