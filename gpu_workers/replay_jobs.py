"""Celery entry points of replays: reproduce an episode, probe tasks. One report goes out whatever happens."""

import asyncio
import logging
from typing import Any

from gpu_workers import jobs
from gpu_workers.celery import app
from gpu_workers.contracts import queues
from gpu_workers.contracts.replays import (
    EpisodeReproduced,
    ProbeItem,
    ProbeJob,
    ReproduceJob,
    TaskProbe,
    TasksProbed,
)
from gpu_workers.reporting import new_report
from gpu_workers.rollout.probe import probe_task
from gpu_workers.rollout.reproduce import reproduce

PROBE_CONCURRENCY = 4  # tasks of one message probed at once

logger = logging.getLogger(__name__)


@app.task(name=queues.JOB_REPRODUCE)
def reproduce_episode(payload: dict[str, Any]) -> None:
    """One stored episode, played again."""
    job = jobs.decode(payload, ReproduceJob)
    try:
        report = asyncio.run(reproduce(job, jobs.group_services()))
    except Exception as error:  # process edge: who waits for the answer must learn of a broken invariant too
        logger.exception("reproduction %s", job.job_id)
        report = EpisodeReproduced(job_id=job.job_id, error=jobs.describe(error))
    jobs.reporter().send(new_report("reproduced", report, report_id=f"reproduced.{job.job_id}"))


@app.task(name=queues.JOB_PROBE)
def probe_tasks(payload: dict[str, Any]) -> None:
    """Shortcut policies and stored episodes of some tasks."""
    job = jobs.decode(payload, ProbeJob)
    report = TasksProbed(job_id=job.job_id, report_id=job.report_id, probes=asyncio.run(_probe_all(job)))
    jobs.reporter().send(new_report("probed", report, report_id=f"probed.{job.job_id}"))


async def _probe_all(job: ProbeJob) -> list[TaskProbe]:
    slots = asyncio.Semaphore(PROBE_CONCURRENCY)
    services = jobs.group_services()

    async def probe(item: ProbeItem) -> TaskProbe:
        async with slots:
            try:
                return await probe_task(item, job, services)
            except Exception as error:  # process edge: one task must not lose the others' probes
                logger.warning("probe of task %s: %s", item.task_id, jobs.describe(error))
                return TaskProbe(task_id=item.task_id, error=jobs.describe(error))

    return await asyncio.gather(*(probe(item) for item in job.items))
