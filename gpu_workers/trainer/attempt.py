"""One trainer attempt from job to last report: load or resume, step, publish, report, acknowledge."""

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from gpu_workers.contracts import exporter
from gpu_workers.contracts.messages import (
    BatchMessage,
    Heartbeat,
    Report,
    StepReport,
    TrainerFinished,
    TrainerStarted,
    TrainJob,
)
from gpu_workers.contracts.points import PointBatch, body_of
from gpu_workers.contracts.runspec import Algorithm, RunSpec, parse_run_spec, stored_spec_hash
from gpu_workers.contracts.seams import Published, TrainGroup
from gpu_workers.contracts.store import ObjectStore, StoreError
from gpu_workers.contracts.transfers import Transfer
from gpu_workers.models.folder import ModelError, read_description
from gpu_workers.process import cpu_seconds, peak_memory_bytes, release_freed_memory
from gpu_workers.sessions.chat import ChatTemplate
from gpu_workers.trainer import supervised
from gpu_workers.trainer.backend import BaseModel, PolicyTrainer
from gpu_workers.trainer.checkpoints import DamagedCheckpoint
from gpu_workers.trainer.consumer import BatchSource
from gpu_workers.trainer.heartbeat import HeartbeatThread
from gpu_workers.trainer.publishing import CheckpointPublisher
from gpu_workers.trainer.world import ALONE, World


class AttemptError(RuntimeError):
    """A failure of the attempt with a code for the control plane."""

    def __init__(self, code: str, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class TrainerReporter(Protocol):
    """Reports and heartbeats."""

    def send(self, report: Report) -> None: ...
    def heartbeat(self, heartbeat: Heartbeat) -> None: ...
    def points(self, batch: PointBatch) -> None: ...


@dataclass(frozen=True)
class Workplace:
    """What the worker's settings say: object store, models and a folder for copies."""

    store: ObjectStore
    models_dir: Path
    cache_dir: Path
    snapshot_every: int = 10  # versions until one is published whole, where every weight is trained


_BY_CHANGES = (Transfer.AUTO, Transfer.DELTA)  # other transfers want every version whole


class TrainerAttempt:
    """Runs one TrainJob. `run` returns after the last step or a stop; every report's id is fixed by what it says."""

    def __init__(
        self,
        job: TrainJob,
        place: Workplace,
        reporter: TrainerReporter,
        heartbeat: HeartbeatThread | None = None,
        world: World = ALONE,
    ) -> None:
        self.job, self.place, self.reporter, self.world = job, place, reporter, world
        self.spec: RunSpec = parse_run_spec(job.spec)
        self._heartbeat = heartbeat
        self._publisher = CheckpointPublisher(
            place.store,
            job.run_id,
            job.attempt,
            world,
            work=place.cache_dir / "publishing" / job.run_id,
            snapshot_every=place.snapshot_every if self.spec.trainer.transfer in _BY_CHANGES else 1,
        )
        self._reports: dict[str, Report] = {}
        self._skipped_in_a_row = 0

    def run(self, source: BatchSource | None) -> None:
        """Train to the end. GRPO needs a source of batches; SFT brings its own."""
        backend = self._load()
        if self.spec.algorithm.kind is Algorithm.SFT:
            self._run_supervised(backend)
        elif source is None:
            raise AttemptError("no_batches", "a run with rollouts needs a batch queue", retryable=False)
        else:
            self._run_batches(backend, source)

    def repeat_report(self, message: BatchMessage) -> None:
        """Send the report of a batch again that was trained already: its first copy may be lost."""
        report = self._reports.get(message.batch_id)
        if report is not None:
            self.reporter.send(report)

    # -- loading

    def _load(self) -> PolicyTrainer:
        job = self.job
        self._say("loading", 0)
        folder = self.place.models_dir / job.base_model
        try:
            description = read_description(folder)
        except ModelError as error:
            raise AttemptError("unknown_model", str(error), retryable=False) from error
        base = BaseModel(job.base_model, folder, description.fingerprint)
        backend = PolicyTrainer(
            self.spec,
            base,
            run_id=job.run_id,
            attempt=job.attempt,
            world=self.world,
            stored_hash=stored_spec_hash(job.spec),
        )
        if job.parent_checkpoint:
            backend.start_from(self._local(job.parent_checkpoint), job.parent_sha256)
        if job.resume_from:
            try:
                folder = self._local(job.resume_from)
            except StoreError as error:
                raise DamagedCheckpoint(f"{error}: resume from an older one") from error
            backend.load(folder)
        return backend

    def _local(self, key: str) -> Path:
        return self.place.store.local_folder(key, self.place.cache_dir)

    # -- reinforcement learning

    def _run_batches(self, backend: PolicyTrainer, source: BatchSource) -> None:
        self._report_started(backend)
        while backend.version < self.spec.steps:
            self._say("waiting", backend.version)
            waiting = time.time()
            delivery = source.next(backend.version)
            if delivery.stop is not None:
                delivery.acknowledge()
                if delivery.stop.cancelled:
                    return
                break
            assert isinstance(delivery.message, BatchMessage)
            _refuse_known(backend, delivery.message)
            self._train_batch(backend, delivery.message, waiting)
            delivery.acknowledge()
        self._report_finished(backend)

    def _train_batch(self, backend: PolicyTrainer, message: BatchMessage, waiting: float) -> None:
        groups = [TrainGroup(g.group_id, g.age, self.place.store.get(g.uri)) for g in message.groups]
        started = time.time()
        self._say("training", backend.version)
        metrics, skipped = backend.step(message.batch_id, groups)
        trained = time.time()
        published = self._publish(backend)
        report = StepReport(
            version=backend.version,
            batch_id=message.batch_id,
            batch_ids=backend.batch_ids,
            metrics=metrics,
            skipped_groups=skipped,
            started_at=started,
            wait_seconds=started - waiting,
            train_seconds=trained - started,
        )
        self._report_step(report, published, trained)
        self._count_skipped(backend, metrics, skipped)

    def _count_skipped(
        self, backend: PolicyTrainer, metrics: dict[str, float], skipped: dict[str, str] | None = None
    ) -> None:
        """Halt after too many refused updates in a row; a batch without a usable group is no sign of a broken model."""
        if not metrics["train/num_sampled_tokens"]:
            return
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if metrics.get("train/skipped_updates") else 0
        if self._skipped_in_a_row >= self.spec.limits.max_skipped_updates:
            at_fault = [f"group {group}: {why}" for group, why in (skipped or {}).items() if "NaN" in why][:1]
            raise AttemptError(
                "non_finite_gradients",
                f"{self._skipped_in_a_row} updates in a row were refused for NaN or infinity, the last at version "
                f"{backend.version} ({'; '.join(at_fault) or 'no single episode is at fault'}): lower "
                "optimiser.learning_rate or start from an earlier checkpoint",
                retryable=False,
            )

    # -- supervised

    def _run_supervised(self, backend: PolicyTrainer) -> None:
        if not self.job.dataset:
            raise AttemptError("bad_dataset", "an SFT job names no dataset", retryable=False)
        options = self.spec.algorithm
        examples = supervised.read_dataset(self.place.store.get(self.job.dataset))
        layout = ChatTemplate(self.place.models_dir / self.job.base_model)
        sequences = supervised.tokenise_all(examples, layout, context_length=backend.context_length)
        total = supervised.num_steps(len(sequences), options.sft_batch_size, options.sft_epochs)
        backend.total_steps = total
        self._report_started(backend, total_steps=total)
        order = supervised.batch_indices(len(sequences), options.sft_batch_size, options.sft_epochs, self.spec.seed)
        for step, indices in enumerate(order):
            if step < backend.version:
                continue  # contained in the checkpoint resumed from
            started = time.time()
            self._say("training", backend.version)
            metrics = backend.step_supervised(f"sft-{step}", [sequences[i] for i in indices])
            trained = time.time()
            every = self.job.publish_every
            due = backend.version == total or (every > 0 and backend.version % every == 0)
            published = self._publish(backend) if due else None
            report = StepReport(
                version=backend.version, metrics=metrics, started_at=started, train_seconds=trained - started
            )
            self._report_step(report, published, trained)
            self._count_skipped(backend, metrics)
        self._report_finished(backend)

    # -- publishing and reporting

    def _publish(self, backend: PolicyTrainer) -> Published:
        self._say("publishing", backend.version)
        return self._publisher.publish(backend, last=backend.version >= backend.total_steps)

    def _report_step(self, report: StepReport, published: Published | None, trained: float) -> None:
        release_freed_memory()
        report.finished_at = time.time()
        report.publish_seconds = report.finished_at - trained
        if published is not None:
            report.checkpoint, report.adapter = published.checkpoint, published.adapter
            report.sha256, report.num_bytes = published.sha256, published.num_bytes
        report.metrics["train/cpu_seconds"] = cpu_seconds()
        report.metrics["train/peak_memory_bytes"] = float(peak_memory_bytes())
        exporter.STEPS.inc()
        exporter.STEP_SECONDS.observe(report.finished_at - report.started_at)
        sent = self._send(f"v{report.version}", "step", report)
        if report.batch_id:
            self._reports[report.batch_id] = sent

    def _report_started(self, backend: PolicyTrainer, *, total_steps: int = 0) -> None:
        started = TrainerStarted(
            resumed_version=backend.version,
            batch_ids=backend.batch_ids if self.spec.algorithm.kind is not Algorithm.SFT else [],
            total_steps=total_steps,
            host=socket.gethostname(),
        )
        self._send("started", "trainer_started", started)

    def _report_finished(self, backend: PolicyTrainer) -> None:
        finished = TrainerFinished(
            version=backend.version, cpu_seconds=cpu_seconds(), peak_memory_bytes=peak_memory_bytes()
        )
        self._send("finished", "trainer_finished", finished)

    def _send(self, name: str, kind: str, body: msgspec.Struct) -> Report:
        report = make_report(self.job, name, kind, body)
        self.reporter.send(report)
        return report

    def _say(self, state: str, step: int) -> None:
        if self._heartbeat is not None:
            self._heartbeat.state, self._heartbeat.step = state, step


def _refuse_known(backend: PolicyTrainer, message: BatchMessage) -> None:
    """Nothing trains twice: neither a batch under another index nor a group in another batch."""
    if message.batch_id in backend.batch_ids:
        text = f"batch {message.batch_id} came again as {message.index}: none trains twice"
        raise AttemptError("duplicate_batch", text, retryable=False)
    seen = {group_id for ids in backend.group_ids for group_id in ids}
    for group in message.groups:
        if group.group_id in seen:
            text = f"group {group.group_id} came again in batch {message.batch_id}: none trains twice"
            raise AttemptError("duplicate_group", text, retryable=False)
        seen.add(group.group_id)


def make_report(job: TrainJob, name: str, kind: str, body: msgspec.Struct) -> Report:
    """A report whose id is fixed by run, attempt and name: sending it again stores nothing new."""
    return Report(
        report_id=f"{job.run_id}.a{job.attempt}.{name}",
        kind=kind,
        body=body_of(body),
        worker=socket.gethostname(),
        sent_at=time.time(),
        run_id=job.run_id,
        run_attempt=job.attempt,
        token=job.token,
    )
