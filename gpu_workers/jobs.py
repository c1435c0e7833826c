"""Celery entry points of the workers: decode, do, report. What goes wrong becomes a report, never silence."""

import asyncio
import contextlib
import logging
import time
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from celery.signals import worker_ready, worker_shutting_down
from celery.worker.control import control_command
from kombu.exceptions import OperationalError

from gpu_workers import launching
from gpu_workers.celery import app
from gpu_workers.contracts import queues
from gpu_workers.contracts.enums import Boundary, ReasonCode
from gpu_workers.contracts.messages import (
    FleetJob,
    GroupReport,
    GroupSignal,
    Heartbeat,
    PolicyInstalled,
    RolloutJob,
    TaskCheck,
    TasksVerified,
    TrainerFailed,
    TrainJob,
    VerifyItem,
    VerifyJob,
)
from gpu_workers.contracts.seams import SandboxBackend, Verifier, WorkerError
from gpu_workers.contracts.store import StoreError
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.engines.sglang import SGLangEngine
from gpu_workers.monitoring import EngineMonitor
from gpu_workers.reporting import CeleryReporter, new_report, worker_name
from gpu_workers.rollout.group import GroupServices, run_group
from gpu_workers.rollout.running import GroupCancelled, deliver
from gpu_workers.sandboxes.backends import make_backend
from gpu_workers.settings import settings
from gpu_workers.verifiers.gate import check_task
from gpu_workers.verifiers.judge import JudgeEndpoint
from gpu_workers.verifiers.registry import audit_verifier, get_verifier
from gpu_workers.verifiers.results import TaskError
from gpu_workers.weights.fleet import install_on_fleet

VERIFY_CONCURRENCY = 4  # tasks of one message checked at once

logger = logging.getLogger(__name__)
Job = TypeVar("Job", bound=msgspec.Struct)


@lru_cache(maxsize=1)
def reporter() -> CeleryReporter:
    return CeleryReporter(app)


@lru_cache(maxsize=1)
def sandbox_backend() -> SandboxBackend:
    return make_backend(settings().sandbox_backend, settings().sandbox)


@lru_cache(maxsize=4096)
def load_task(key: str) -> TaskBundle:
    """A task by its object key; content-addressed, so it never changes. Raises StoreError, WorkerError(ENVIRONMENT)."""
    try:
        return msgspec.json.decode(settings().store.get(key), type=TaskBundle)
    except msgspec.DecodeError as error:
        raise WorkerError(Boundary.ENVIRONMENT, f"object {key} is not a task: {error}", retryable=False) from error


@app.task(name=queues.JOB_ROLLOUT)
def rollout_group(payload: dict[str, Any]) -> None:
    """One group; its report is sent whatever happens, unless the control plane has given it up."""
    job = decode(payload, RolloutJob)
    started = time.time()
    try:
        report = asyncio.run(run_group(job, group_services()))
    except GroupCancelled as cancelled:
        logger.info("group %s was given up: %s", job.group_id, cancelled)
        return
    except Exception as error:  # process edge: the control plane must learn of a broken invariant too
        logger.exception("group %s", job.group_id)
        report = GroupReport(
            group_id=job.group_id,
            attempt=job.attempt,
            error=describe(error),
            boundary=str(Boundary.INFRASTRUCTURE),
            started_at=started,
            finished_at=time.time(),
        )
    # One id a dispatch: a message delivered twice by the broker is stored once.
    report_id = f"group.{job.group_id}.{job.attempt}"
    reporter().send(new_report("group", report, report_id=report_id, run_id=job.run_id, run_attempt=job.run_attempt))


@control_command(name=queues.SIGNAL_GROUPS, args=[("signal", dict)])
def signal_groups(state: Any, signal: dict[str, Any]) -> int:
    """Broadcast by the control plane: groups to give up, or to go on with a newer version."""
    return deliver(msgspec.convert(signal, GroupSignal))


@app.task(name=queues.JOB_VERIFY)
def verify_tasks(payload: dict[str, Any]) -> None:
    """Import check of some tasks."""
    job = decode(payload, VerifyJob)
    checks = asyncio.run(_check_all(job))
    report = TasksVerified(job_id=job.job_id, suite_id=job.suite_id, checks=checks)
    reporter().send(new_report("verified", report, report_id=f"verified.{job.job_id}"))


@app.task(name=queues.JOB_FLEET)
def install_policy(payload: dict[str, Any]) -> None:
    """Install and retire adapters on every engine."""
    job = decode(payload, FleetJob)
    started = time.monotonic()
    try:
        worker = settings()
        urls = job.engines or worker.require_engines()
        report = asyncio.run(
            install_on_fleet(
                job,
                worker.store,
                worker.models_dir,
                worker.cache_dir,
                urls,
                agents=worker.agents,
                agent_secret=worker.agent_secret,
                address=worker.address,
                collective=worker.collective,
            )
        )
    except Exception as error:  # process edge
        logger.exception("install job %s", job.job_id)
        report = PolicyInstalled(
            job_id=job.job_id, ok=False, message=describe(error), duration_seconds=time.monotonic() - started
        )
    reporter().send(new_report("installed", report, run_id=job.run_id, run_attempt=job.run_attempt))


@app.task(name=queues.JOB_TRAIN, acks_late=False)  # a dead attempt is never repeated: the lease starts the next one
def train_run(payload: dict[str, Any]) -> None:
    """One trainer attempt, in a process of its own."""
    job = decode(payload, TrainJob)
    _take_lease(job)
    try:
        ending = launching.run_trainer(job, settings().home)
        if ending.reported:
            return
        failed = TrainerFailed(code="process_died", message=ending.describe(), retryable=True)
    except (OSError, ValueError) as error:
        failed = TrainerFailed(code="cannot_start", message=f"the trainer cannot be started: {error}", retryable=True)
    logger.error("run %s attempt %d: %s", job.run_id, job.attempt, failed.message)
    report_id = f"{job.run_id}.a{job.attempt}.failed"  # the id the trainer itself would use
    reporter().send(
        new_report(
            "trainer_failed", failed, report_id=report_id, run_id=job.run_id, run_attempt=job.attempt, token=job.token
        )
    )


def _take_lease(job: TrainJob) -> None:
    """Say at once who has the job: its message is gone, and should this worker die now, its lease must run out soon."""
    beat = Heartbeat(
        run_id=job.run_id, attempt=job.attempt, token=job.token, worker=worker_name(), state="loading", time=time.time()
    )
    with contextlib.suppress(OperationalError):  # the broker is away: the trainer's own heartbeats come later
        reporter().heartbeat(beat)


@worker_ready.connect
def _watch_engines(**_: Any) -> None:
    """The worker of the fleet queue also measures the fleet."""
    if queues.FLEET in app.amqp.queues.consume_from and settings().engine_urls:
        EngineMonitor(settings().engine_urls, reporter()).start()


@worker_ready.connect
def _probe_sandbox(**_: Any) -> None:
    """A worker that runs episodes says at its start whether it can isolate them. Where it cannot, every task that
    needs a sandbox is refused with SANDBOX_UNAVAILABLE; nothing runs without one."""
    if {queues.ROLLOUT, queues.VERIFY}.isdisjoint(app.amqp.queues.consume_from):
        return
    try:
        logger.info("sandboxes: %s", asyncio.run(sandbox_backend().probe()))
    except WorkerError as error:
        logger.critical("no sandboxes on this host: %s", error)


@worker_shutting_down.connect
def _stop_trainers(**_: Any) -> None:
    launching.stop_all()


def decode(payload: dict[str, Any], kind: type[Job]) -> Job:
    """A job from its message. One that cannot be read is logged and dropped: nobody is named to report it for."""
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        logger.error("a %s that cannot be read: %s", kind.__name__, error)
        raise


def describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(describe(inner) for inner in error.exceptions)
    return str(error) if isinstance(error, WorkerError | StoreError) else f"{type(error).__name__}: {error}"


def _reason(error: Exception) -> ReasonCode:
    """Why a check could not be made; a host without sandboxes says nothing about the task."""
    if isinstance(error, WorkerError) and error.boundary is Boundary.INFRASTRUCTURE:
        return ReasonCode.SANDBOX_UNAVAILABLE
    return ReasonCode.VERIFIER_CRASH if not isinstance(error, WorkerError | StoreError) else ReasonCode.TASK_INVALID


def group_services() -> GroupServices:
    worker = settings()
    backend = sandbox_backend()
    return GroupServices(
        store=worker.store,
        connect=SGLangEngine,
        engine_urls=worker.engine_urls,
        router_url=worker.router_url,
        models_dir=worker.models_dir,
        backend=backend,
        verifier=_verifier_of,
        load_task=load_task,
        audit=_audit_of,
    )


def _verifier_of(task: TaskBundle) -> Verifier:
    try:
        return get_verifier(task.verifier, sandbox_backend(), judge_endpoint())
    except TaskError as error:
        raise WorkerError(Boundary.ENVIRONMENT, f"task {task.key}: {error}", retryable=False) from error


def _audit_of(task: TaskBundle) -> Verifier | None:
    try:
        return audit_verifier(task, sandbox_backend(), judge_endpoint())
    except TaskError as error:
        raise WorkerError(Boundary.ENVIRONMENT, f"task {task.key}: audit_{error}", retryable=False) from error


def judge_endpoint() -> JudgeEndpoint | None:
    """Where this worker may ask a model for its opinion."""
    worker = settings()
    return JudgeEndpoint(worker.judge_url, worker.judge_key) if worker.judge_url else None


async def _check_all(job: VerifyJob) -> list[TaskCheck]:
    slots = asyncio.Semaphore(VERIFY_CONCURRENCY)

    async def check(item: VerifyItem) -> TaskCheck:
        async with slots:
            try:
                task = load_task(item.task)
                return await check_task(
                    task,
                    sandbox_backend(),
                    job.repeats,
                    bad_repeats=job.bad_repeats,
                    task_id=item.task_id,
                    judge=judge_endpoint(),
                )
            except Exception as error:  # process edge: one task must not lose the others' checks
                logger.warning("check of task %s: %s", item.task_id, describe(error))
                return TaskCheck(task_id=item.task_id, ok=False, reason_code=_reason(error), message=describe(error))

    return await asyncio.gather(*(check(item) for item in job.items))
