"""The trainer process: `python -m gpu_workers.trainer JOB.json`.

Exit codes: 0 finished or stopped, 1 failed and reported, 2 the job file or the settings cannot be used.
SIGTERM ends it at once: a checkpoint is complete or does not count, so any moment is safe.
"""

import argparse
import os
import sys
import traceback
from pathlib import Path

import msgspec
import torch

from gpu_workers.contracts import exporter
from gpu_workers.contracts.messages import TrainerFailed, TrainJob
from gpu_workers.contracts.runspec import Algorithm, SpecError
from gpu_workers.contracts.store import StoreError
from gpu_workers.process import die_with_parent, keep_freed_memory
from gpu_workers.reporting import CeleryReporter, JsonlReporter, NullReporter, PointStream, worker_name
from gpu_workers.sessions.chat import TemplateError
from gpu_workers.settings import SettingsError, WorkerSettings, load_settings
from gpu_workers.trainer.attempt import AttemptError, TrainerAttempt, TrainerReporter, Workplace, make_report
from gpu_workers.trainer.checkpoints import CheckpointError, DamagedCheckpoint
from gpu_workers.trainer.consumer import BroadcastBatches, KombuBatches
from gpu_workers.trainer.heartbeat import HeartbeatThread
from gpu_workers.trainer.model import ModelLoadError
from gpu_workers.trainer.supervised import DatasetError
from gpu_workers.trainer.usage import UsageThread
from gpu_workers.trainer.world import ALONE, World, end_rank, join_world, leave_world

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.trainer", description=__doc__)
    parser.add_argument("job", type=Path, help="file with a TrainJob as JSON")
    parser.add_argument("--reports", type=Path, help="append reports to this JSONL file instead of the broker")
    options = parser.parse_args(arguments)
    die_with_parent()
    keep_freed_memory()
    torch.set_flush_denormal(True)  # tiny probabilities would otherwise be multiplied in microcode
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads()))
    try:
        job = msgspec.json.decode(options.job.read_bytes(), type=TrainJob)
        settings = load_settings()
    except (OSError, msgspec.DecodeError, SettingsError) as error:
        sys.stderr.write(f"trainer: {options.job}: {error}\n")
        return EXIT_USAGE
    world = join_world()
    try:
        code = run_job(job, settings, _reporter(settings, options.reports, world), world)
    finally:
        leave_world(world)
    end_rank(world, code)
    return code


def run_job(job: TrainJob, settings: WorkerSettings, reporter: TrainerReporter, world: World = ALONE) -> int:
    """Run one attempt with heartbeats; a failure becomes a report."""
    heartbeat = HeartbeatThread(
        reporter.heartbeat, run_id=job.run_id, attempt=job.attempt, token=job.token, worker=worker_name()
    )
    heartbeat.start()
    usage = None
    if world.is_main:
        exporter.serve(trainer=True)
        stream = PointStream(
            reporter, run_id=job.run_id, attempt=job.attempt, token=job.token, source=f"trainer.{job.token}"
        )
        usage = UsageThread(stream, heartbeat)
        usage.start()
    try:
        _run(job, settings, reporter, heartbeat, world)
    except Exception as error:  # process edge: whatever it was, the control plane is told
        traceback.print_exc()
        reporter.send(make_report(job, "failed", "trainer_failed", describe_failure(error)))
        return EXIT_FAILED
    finally:
        if usage is not None:
            usage.end()
        heartbeat.end()
    return EXIT_OK


def _run(
    job: TrainJob, settings: WorkerSettings, reporter: TrainerReporter, heartbeat: HeartbeatThread, world: World
) -> None:
    place = Workplace(settings.store, settings.models_dir, settings.cache_dir, settings.snapshot_every)
    attempt = TrainerAttempt(job, place, reporter, heartbeat, world)
    if attempt.spec.algorithm.kind is Algorithm.SFT:
        attempt.run(None)
        return
    batches = None
    if world.is_main:
        batches = KombuBatches(
            settings.broker_url,
            job.run_id,
            job.attempt,
            on_duplicate=attempt.repeat_report,
            on_invalid=_note_invalid,
        )
    source = BroadcastBatches(batches, world)
    try:
        attempt.run(source)
    finally:
        source.close()


def _note_invalid(text: str) -> None:
    sys.stderr.write(f"trainer: dropped a message: {text}\n")


def describe_failure(error: Exception) -> TrainerFailed:
    """Code, message and whether another attempt may help."""
    if isinstance(error, AttemptError):
        return TrainerFailed(code=error.code, message=str(error), retryable=error.retryable)
    codes: list[tuple[type[Exception], str, bool]] = [
        (DamagedCheckpoint, "damaged_checkpoint", True),
        (CheckpointError, "bad_checkpoint", False),
        (ModelLoadError, "bad_model", False),
        (DatasetError, "bad_dataset", False),
        (TemplateError, "bad_template", False),
        (SpecError, "bad_spec", False),
        (StoreError, "missing_object", True),
        (MemoryError, "out_of_memory", True),
        (OSError, "input_output", True),
    ]
    for kind, code, retryable in codes:
        if isinstance(error, kind):
            return TrainerFailed(code=code, message=str(error), retryable=retryable)
    return TrainerFailed(code="internal", message=f"{type(error).__name__}: {error}", retryable=True)


def _reporter(settings: WorkerSettings, reports: Path | None, world: World) -> TrainerReporter:
    if not world.is_main:
        return NullReporter()
    if reports is not None:
        return JsonlReporter(reports)
    from gpu_workers.celery import make_app

    return CeleryReporter(make_app(settings.broker_url))
