"""Messages of measurements to workers. Call from `transaction.on_commit`."""

from gpu_workers.contracts import queues
from gpu_workers.contracts.groups import jsonable
from gpu_workers.contracts.measurements import MeasureJob
from ratchet.celery import app


def send_job(job: MeasureJob) -> None:
    app.send_task(queues.JOB_MEASURE, args=[jsonable(job)], queue=queues.VERIFY)
