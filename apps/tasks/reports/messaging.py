"""Messages of reports to workers and to their own jobs. Call from `transaction.on_commit`."""

from uuid import UUID

from gpu_workers.contracts import queues
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.replays import ProbeJob
from ratchet.celery import app

COMPUTE = "apps.tasks.jobs.compute_report"
FINISH = "apps.tasks.jobs.finish_report"


def request_compute(report_id: UUID) -> None:
    app.send_task(COMPUTE, args=[str(report_id)], queue=queues.CONTROL)


def request_finish(report_id: UUID) -> None:
    app.send_task(FINISH, args=[str(report_id)], queue=queues.CONTROL)


def send_probes(job: ProbeJob) -> None:
    app.send_task(queues.JOB_PROBE, args=[jsonable(job)], queue=queues.VERIFY)
