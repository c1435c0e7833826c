"""One group: its episodes side by side on one engine, then the group file, the transcript and the report."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.groups import EpisodeRecord, GroupTranscript, SandboxRecord, VerdictRecord, encode_group
from gpu_workers.contracts.messages import GroupReport, RolloutJob
from gpu_workers.contracts.seams import Environment, RolloutEngine, SandboxBackend, Verifier, WorkerError
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.contracts.tasks import TaskBundle
from gpu_workers.engines.fleet import EngineFleet
from gpu_workers.environments.hosted import HostedToolEnvironment
from gpu_workers.environments.process import worker_hosts
from gpu_workers.rollout.environment import ToolEnvironment
from gpu_workers.rollout.episode import Episode, EpisodeSetup, run_episode
from gpu_workers.rollout.running import RunningGroup, running
from gpu_workers.sandboxes.decoys import Decoys, wants_decoys
from gpu_workers.sessions.chat import ChatTemplate, TemplateError, find_template

VERIFY_SHARE = 0.2  # of the time left at the start, kept for the verdicts


@dataclass(frozen=True)
class GroupServices:
    """What a worker process lends to its groups. `connect` opens an engine client inside the running loop."""

    store: ObjectStore
    connect: Callable[[str], RolloutEngine]
    engine_urls: Sequence[str]
    models_dir: Path
    backend: SandboxBackend
    verifier: Callable[[TaskBundle], Verifier]
    load_task: Callable[[str], TaskBundle]
    router_url: str = ""  # generation goes through it where there is one
    audit: Callable[[TaskBundle], Verifier | None] = lambda task: None
    make_environment: Callable[[TaskBundle], Environment] | None = None


async def run_group(job: RolloutJob, services: GroupServices) -> GroupReport:
    """Generate, verify, store. Failures outside the policy come back inside the report.

    Raises GroupCancelled when the control plane gives the group up meanwhile.
    """
    report = GroupReport(group_id=job.group_id, attempt=job.attempt, started_at=time.time())
    started = time.monotonic()
    try:
        task = services.load_task(job.task)
        with running(job.group_id, job.policy) as group:
            episodes = await _run_episodes(job, task, services, group)
        _store(job, task, episodes, services.store, report)
    except WorkerError as error:
        report.error, report.boundary = str(error), str(error.boundary)
    except StoreError as error:
        report.error, report.boundary = str(error), str(Boundary.INFRASTRUCTURE)
    report.duration_seconds = time.monotonic() - started
    report.finished_at = time.time()
    return report


def order_engines(group_id: str, urls: Sequence[str]) -> list[str]:
    """Engines by preference: one group's requests meet on one engine, and groups spread evenly (rendezvous hashing)."""
    return sorted(urls, key=lambda url: hashlib.sha256(f"{group_id} {url}".encode()).digest())


async def _run_episodes(
    job: RolloutJob, task: TaskBundle, services: GroupServices, group: RunningGroup
) -> list[Episode]:
    remaining = job.deadline - time.time()
    if remaining <= 0:
        raise WorkerError(Boundary.INFRASTRUCTURE, f"the deadline passed {-remaining:.0f} s before a worker was free")
    engine, template = await _open_engine(job, services)
    # A candidate that makes the check hang has failed only once the reference was tried too: twice the verifier's time.
    reserve = min(2 * task.contract.limits.verify_timeout_seconds, VERIFY_SHARE * remaining)
    setup = EpisodeSetup(
        task=task,
        template=template,
        engine=engine,
        policy=job.policy,
        sampling=job.sampling,
        verifier=services.verifier(task),
        deadline=asyncio.get_running_loop().time() + remaining - reserve,
        request_prefix=f"{job.group_id}.{job.attempt}",
        audit=services.audit(task),
        audit_share=job.audit_share,
        group=group,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            episodes = [
                tasks.create_task(run_episode(setup, environment_of(task, services), index))
                for index in range(job.group_size)
            ]
    finally:
        await _quietly(engine.close())
    return [episode.result() for episode in episodes]


def environment_of(task: TaskBundle, services: GroupServices, canary: str = "") -> Environment:
    """A world of its own for one episode of the task; `canary` of its decoys when it is to be the world of another."""
    if services.make_environment is not None:
        return services.make_environment(task)
    if task.hosted is not None:
        return HostedToolEnvironment(worker_hosts(), task)
    decoys = (Decoys(canary) if canary else Decoys()) if wants_decoys(task) else None
    warm = not task.terminal_call  # such a call is never executed
    return ToolEnvironment(
        services.backend, task.contract, task.tools, servers=task.tool_servers, decoys=decoys, warm=warm
    )


async def _open_engine(job: RolloutJob, services: GroupServices) -> tuple[RolloutEngine, ChatTemplate]:
    """The engines, one of which holds the policy and is preferred, and the template of the model they serve."""
    urls = order_engines(job.group_id, job.engines or list(services.engine_urls))
    if not urls:
        raise WorkerError(Boundary.ENGINE, "no engine is known: set ROLLOUT_ENGINE_URLS", retryable=False)
    router = services.connect(services.router_url) if services.router_url and not job.engines else None
    engines = [(url, services.connect(url)) for url in urls]
    fleet = EngineFleet(engines, router=router, weights=job.policy.weights)
    try:
        info = await fleet.confirm(adapter=job.policy.adapter)
        return fleet, _template(info.model_path, services.models_dir)
    except WorkerError:
        await fleet.close()
        raise


def _template(model_path: str, models_dir: Path) -> ChatTemplate:
    try:
        return find_template(model_path, models_dir)
    except TemplateError as error:
        raise WorkerError(Boundary.INFRASTRUCTURE, str(error), retryable=False) from error


def _store(job: RolloutJob, task: TaskBundle, episodes: list[Episode], store: ObjectStore, report: GroupReport) -> None:
    records = [episode.record for episode in episodes]
    transcript = GroupTranscript(
        group_id=job.group_id, task_key=task.key, task_hash=job.task.rsplit("/", 1)[-1], episodes=records
    )
    report.transcript = store.put(transcript.encode())
    report.episodes = [_without_texts(record) for record in records]
    if all(record.reward is None for record in records):
        first = records[0]
        report.error = f"no episode has a verdict; the first says: {first.message}"
        report.boundary = str(first.boundary or Boundary.INFRASTRUCTURE)
        return
    metadata = {
        "group_id": job.group_id,
        "attempt": str(job.attempt),
        "task": job.task,
        "adapter": job.policy.adapter,
        "temperature": str(job.sampling.temperature),
    }
    report.uri = store.put(encode_group([e.session.tokens(e.record.reward) for e in episodes], metadata))
    scored = [record for record in records if record.reward is not None]
    report.min_version = min(record.min_version for record in scored)
    report.max_version = max(record.max_version for record in scored)


def _without_texts(record: EpisodeRecord) -> EpisodeRecord:
    """The small part of a record: turns, token texts and sandbox logs stay in the transcript."""
    sandbox = SandboxRecord(
        backend=record.sandbox.backend, isolation=record.sandbox.isolation, limits_hit=record.sandbox.limits_hit
    )
    verification, audit = (_brief(said) for said in (record.verification, record.audit))
    return msgspec.structs.replace(
        record, turns=[], token_texts=[], sandbox=sandbox, verification=verification, audit=audit
    )


def _brief(said: VerdictRecord | None) -> VerdictRecord | None:
    return None if said is None else msgspec.structs.replace(said, components=[], evidence={})


async def _quietly(closing: Awaitable[None]) -> None:
    """Close a client; its failure can change nothing any more."""
    try:
        await closing
    except WorkerError:
        return
