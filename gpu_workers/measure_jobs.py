"""Celery entry point of verifier measurements. One report goes out whatever happens."""

import asyncio
import logging
from typing import Any

from gpu_workers import jobs
from gpu_workers.celery import app
from gpu_workers.contracts import queues
from gpu_workers.contracts.measurements import MeasureItem, MeasureJob, TaskMeasured, TasksMeasured
from gpu_workers.reporting import new_report
from gpu_workers.verifiers.measuring import measure_task

MEASURE_CONCURRENCY = 2  # tasks of one message at once: times are part of what is measured

logger = logging.getLogger(__name__)


@app.task(name=queues.JOB_MEASURE)
def measure_tasks(payload: dict[str, Any]) -> None:
    """Candidates of some tasks, judged by the verifier and by what is stronger."""
    job = jobs.decode(payload, MeasureJob)
    tasks = asyncio.run(_measure_all(job))
    report = TasksMeasured(job_id=job.job_id, measurement_id=job.measurement_id, tasks=tasks)
    jobs.reporter().send(new_report("measured", report, report_id=f"measured.{job.job_id}"))


async def _measure_all(job: MeasureJob) -> list[TaskMeasured]:
    slots = asyncio.Semaphore(MEASURE_CONCURRENCY)

    async def measure(item: MeasureItem) -> TaskMeasured:
        async with slots:
            try:
                return await measure_task(
                    item,
                    jobs.load_task(item.task),
                    jobs.sandbox_backend(),
                    seed=job.seed,
                    num_inputs=job.num_inputs,
                    judge=jobs.judge_endpoint(),
                )
            except Exception as error:  # process edge: one task must not lose the others' outcomes
                logger.warning("measurement on task %s: %s", item.task_id, jobs.describe(error))
                return TaskMeasured(task_id=item.task_id, error=jobs.describe(error))

    return await asyncio.gather(*(measure(item) for item in job.items))
