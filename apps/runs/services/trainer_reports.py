"""Reports of a trainer attempt: started, steps, finished, failed. The run is locked; dead attempts are refused."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.utils import timezone

from apps.runs import states
from apps.runs.events import ERROR, WARNING, record_event
from apps.runs.models import AttemptState, Batch, BatchState, Checkpoint, Run, RunAttempt, RunState, RunStep
from apps.runs.scheduling.halting import HEALTH_METRICS, Halt
from apps.runs.services import attempts, batches, durable
from apps.runs.services.lifecycle import end_run, halt_run
from apps.runs.signals import checkpoint_published, run_changed, step_stored
from gpu_workers.contracts.messages import Report, StepReport, TrainerFailed, TrainerFinished, TrainerStarted
from gpu_workers.contracts.points import read_values
from gpu_workers.contracts.runspec import Algorithm, parse_run_spec

NON_FINITE = "non_finite_gradients"  # code of a trainer that refused update after update: a rule, not a failure


def _speaker(run: Run, report: Report) -> RunAttempt | str:
    attempt = attempts.find_alive(report.run_id, report.run_attempt, report.token)
    if attempt is not None:
        return attempt
    text = f"Trainer attempt {report.run_attempt} still reports ({report.kind}) though its lease ended; refused."
    record_event(run, "zombie_refused", text, WARNING, attempt=report.run_attempt)
    return f"dead attempt {report.run_attempt}"


def is_supervised(run: Run) -> bool:
    return bool(run.spec["algorithm"]["kind"] == Algorithm.SFT)


def apply_started(run: Run, report: Report) -> str:
    """The trainer has loaded: adopt what its checkpoint holds, send again what it does not."""
    body = msgspec.convert(report.body, TrainerStarted)
    attempt = _speaker(run, report)
    if isinstance(attempt, str):
        return attempt
    if attempt.resumed_version is not None:
        return "the attempt has started already"
    if attempt.state == AttemptState.SENT:
        attempt.state = states.move_attempt(attempt.state, AttemptState.RUNNING)
    attempt.started_at = attempt.started_at or timezone.now()
    attempt.lease_expires_at = timezone.now() + attempts.LEASE
    attempt.resumed_version = attempt.version = body.resumed_version
    attempt.worker = attempt.worker or (body.host or report.worker)[:200]
    attempt.save(update_fields=["state", "started_at", "lease_expires_at", "resumed_version", "version", "worker"])
    if is_supervised(run):
        run.total_steps = body.total_steps
        run.save(update_fields=["total_steps"])
    if not _adopt(run, attempt, body):
        return ""
    sent = batches.send_again(run, attempt, body.resumed_version)
    again = f"; {len(sent)} batches were sent again" if sent else ""
    if body.resumed_version < run.version:
        again += f". It computes up to the published version {run.version} again, which must give the same bytes"
    text = f"Trainer attempt {attempt.number} started at version {body.resumed_version}{again}."
    record_event(run, "trainer_started", text, attempt=attempt.number, version=body.resumed_version)
    return ""


def _adopt(run: Run, attempt: RunAttempt, body: TrainerStarted) -> bool:
    """Bring the run to the version the trainer resumed from. False: the two do not fit, and the run failed.

    A trainer behind the published version (newer checkpoints were lost) computes the batches in between again.
    """
    if not is_supervised(run):
        rows = list(run.batches.exclude(state=BatchState.ABANDONED).order_by("index"))
        known = [str(batch.id) for batch in rows[: body.resumed_version]]
        if body.batch_ids != known:
            message = (
                f"The checkpoint of version {body.resumed_version} holds other batches than the database says: "
                f"{len(body.batch_ids)} against {len(known)}. The object store belongs to another database."
            )
            end_run(run, RunState.FAILED, code="checkpoint_mismatch", message=message)
            return False
        for batch in rows[: body.resumed_version]:
            batches.mark_trained(batch, {})
    if body.resumed_version > run.version:
        run.version = body.resumed_version
        run.step = max(run.step, run.version)
        run.save(update_fields=["version", "step"])
    if attempt.resume_from:
        adopt_unreported(run, durable.attempt_of(attempt.resume_from), body.resumed_version, body.batch_ids)
    return True


def adopt_all(run: Run) -> None:
    """At the end of training: reports that come later add their numbers to what is stored here."""
    last = run.attempts.order_by("-number").first()
    trained = run.batches.exclude(state=BatchState.ABANDONED).order_by("index").values_list("id", flat=True)
    if last is not None:
        adopt_unreported(run, last.number, run.version, [str(batch) for batch in trained])


def adopt_unreported(run: Run, attempt: int, version: int, batch_ids: Sequence[str]) -> None:
    """Take over what is durable up to `version` and was never heard of: the reports are lost, late or refused."""
    for key in durable.unreported_until(run, attempt, version):
        found = durable.read(key)
        if found is None:
            continue
        step = StepReport(
            version=found.version, batch_ids=[*batch_ids[: found.version]], checkpoint=key,
            adapter=found.adapter, sha256=found.sha256, num_bytes=found.num_bytes,
        )  # fmt: skip
        _store_checkpoint(run, found.attempt, step)
        text = f"No report of version {found.version} came, but it is durable; it was taken over from its checkpoint."
        record_event(run, "checkpoint_adopted", text, WARNING, version=found.version)


def apply_step(run: Run, report: Report) -> str:
    """A step is durable: mark its batches trained, store the checkpoint, move the version on. Any order, any number."""
    body = msgspec.convert(_with_nan(report.body), StepReport)
    attempt = _speaker(run, report)
    if isinstance(attempt, str):
        return attempt
    attempt.version = max(attempt.version or 0, body.version)
    attempt.save(update_fields=["version"])
    known = run.checkpoints.filter(version=body.version).first()
    if known is not None:
        return _compare_replayed(run, attempt, known, body)
    if not is_supervised(run):
        refused = _mark_batches(run, body)
        if refused:
            return refused
    checkpoint = _store_checkpoint(run, attempt.number, body) if body.checkpoint else None
    run.step = max(run.step, body.version)
    if checkpoint is not None:
        run.version = max(run.version, body.version)
    run.train_cpu_seconds = attempts.spent_cpu_seconds(run)
    run.save(update_fields=["step", "version", "train_cpu_seconds"])
    _store_numbers(run, attempt, checkpoint, body)
    return ""


def _store_numbers(run: Run, attempt: RunAttempt, checkpoint: Checkpoint | None, body: StepReport) -> None:
    RunStep.objects.get_or_create(
        run=run, number=body.version, defaults={"values": _health(body), "at": timezone.now()}
    )
    record_event(run, "step", _describe(body), step=body.version, attempt=attempt.number)
    step_stored.send(sender=Run, run=run, checkpoint=checkpoint, report=body, attempt=attempt.number)
    run_changed.send(sender=Run, run=run)


def _compare_replayed(run: Run, attempt: RunAttempt, known: Checkpoint, body: StepReport) -> str:
    """A version that exists was computed again: its bytes must be those that were published, else nothing is exact."""
    if known.attempt == attempt.number or not body.checkpoint:
        if run.steps.filter(number=body.version).exists():
            return f"version {body.version} is stored already"
        _store_numbers(run, attempt, known, body)  # the checkpoint was taken over before its report came
        return ""
    if body.sha256 != known.sha256:
        message = (
            f"Version {body.version} computed again by attempt {attempt.number} differs from what attempt "
            f"{known.attempt} published (digest {body.sha256[:12]}… against {known.sha256[:12]}…), so the run cannot "
            "go on exactly. Its trainer ran on another machine, number of threads or build: retry the run."
        )
        end_run(run, RunState.FAILED, code="resume_diverged", message=message)
        return ""
    # Equal bytes keep the name that engines know them by; the folder is the one that is whole.
    known.uri, known.adapter, known.resumable = body.checkpoint, body.adapter, True
    known.save(update_fields=["uri", "adapter", "resumable"])
    text = f"Version {body.version} was computed again from its batches, byte for byte as published."
    record_event(run, "version_replayed", text, version=body.version, attempt=attempt.number)
    return ""


def _with_nan(body: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinities travel as text; a metric that is one is a value too, and must not cost the step."""
    return body | {"metrics": read_values(body.get("metrics") or {})}


def _health(body: StepReport) -> dict[str, float | None]:
    """What the stop rules look at; JSON has no NaN. A batch without a usable token says nothing of the model."""
    if body.metrics.get("train/num_sampled_tokens") == 0:
        return {}
    found = {name: body.metrics[name] for name in HEALTH_METRICS if name in body.metrics}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _mark_batches(run: Run, body: StepReport) -> str:
    known = {str(batch.id): batch for batch in run.batches.exclude(state=BatchState.ABANDONED)}
    names = body.batch_ids or [body.batch_id]
    for name in names:
        if name not in known:
            return f"the step holds batch {name}, which the run has not"
    skipped: Mapping[str, str] = body.skipped_groups
    for name in names:
        batch: Batch = known[name]
        batches.mark_trained(batch, skipped if name == body.batch_id else {})
    return ""


def _store_checkpoint(run: Run, attempt: int, body: StepReport) -> Checkpoint:
    checkpoint = Checkpoint.objects.create(
        run=run,
        attempt=attempt,
        version=body.version,
        uri=body.checkpoint,
        adapter=body.adapter,
        sha256=body.sha256,
        num_bytes=max(0, body.num_bytes),
        batch_ids=body.batch_ids,
        train_cpu_seconds=body.metrics.get("train/cpu_seconds") or attempts.spent_cpu_seconds(run),
    )
    checkpoint_published.send(sender=Checkpoint, run=run, checkpoint=checkpoint)
    return checkpoint


def _describe(body: StepReport) -> str:
    named = (("train/reward_mean", "reward"), ("train/loss", "loss"), ("train/grad_norm", "gradient norm"))
    values = [f"{label} {body.metrics[name]:.3g}" for name, label in named if name in body.metrics]
    skipped = f"; {len(body.skipped_groups)} groups skipped" if body.skipped_groups else ""
    return f"Step {body.version} done{': ' + ', '.join(values) if values else ''}{skipped}."


def apply_finished(run: Run, report: Report) -> str:
    """All steps are done. Step reports that are still on their way stay welcome."""
    body = msgspec.convert(report.body, TrainerFinished)
    attempt = _speaker(run, report)
    if isinstance(attempt, str):
        return attempt
    if attempt.state == AttemptState.ENDED:
        return "the attempt has ended already"
    attempt.finished_version = body.version
    attempt.cpu_seconds = max(attempt.cpu_seconds, body.cpu_seconds)
    attempt.memory_bytes = max(attempt.memory_bytes, body.peak_memory_bytes)
    attempt.save(update_fields=["finished_version", "cpu_seconds", "memory_bytes"])
    attempts.end_attempt(attempt, "finished")
    run.train_cpu_seconds = attempts.spent_cpu_seconds(run)
    run.save(update_fields=["train_cpu_seconds"])
    record_event(run, "trainer_finished", f"The trainer finished at version {body.version}.", version=body.version)
    return ""


def apply_failed(run: Run, report: Report) -> str:
    """The attempt gave up. Without hope the run fails; else the reconciler starts the next attempt."""
    body = msgspec.convert(report.body, TrainerFailed)
    attempt = _speaker(run, report)
    if isinstance(attempt, str):
        return attempt
    if attempt.state == AttemptState.ENDED:
        return "the attempt has ended already"
    reason = f"{body.code}: {body.message}"
    if body.retryable:
        attempts.lose_attempt(run, attempt, reason, body.code)
        return ""
    record_event(run, "trainer_failed", reason, ERROR, attempt=attempt.number)
    if body.code == NON_FINITE:
        since = max(1, run.step - parse_run_spec(run.spec).limits.max_skipped_updates + 1)
        halt_run(run, Halt(body.code, f"{body.message}.", since))
        return ""
    end_run(run, RunState.FAILED, code=body.code[:40], message=body.message)
    return ""
