"""Turns what runs announce into points, in the same transaction, and tells live pages after its commit."""

from typing import Any

from django.dispatch import receiver
from django.utils import timezone

from apps.metrics import histograms
from apps.metrics.announcer import announce
from apps.metrics.measurements import errors_by_boundary, measure_step
from apps.metrics.services import store_points
from apps.runs.models import FleetInstall, Group, InstallState, Outcome, Run, RunEvent, RunState
from apps.runs.signals import group_stored, install_finished, run_changed, run_event, step_stored, worker_sampled
from gpu_workers.contracts.messages import PolicyInstalled, StepReport, WorkerSample


@receiver(step_stored, dispatch_uid="metrics.step")
def store_step(run: Run, report: StepReport, attempt: int, **_: Any) -> None:
    """The trainer's own numbers as reported, and the same step measured from its stored episodes."""
    now = timezone.now()
    seconds = {
        "train/wait_seconds": report.wait_seconds,
        "train/train_seconds": report.train_seconds,
        "train/publish_seconds": report.publish_seconds,
    }
    store_points(run, report.version, seconds | report.metrics, attempt=attempt, measured=False, at=now)
    measured: dict[str, float | None] = {
        "time/trainer_seconds": report.train_seconds,
        "time/weight_update_seconds": report.publish_seconds,
        "time/idle_seconds": report.wait_seconds,
    }
    if report.batch_id:
        measured |= measure_step(report.batch_id)
    store_points(run, report.version, measured, attempt=attempt, measured=True, at=now)
    if report.batch_id:
        trained = Group.objects.filter(batch_id=report.batch_id, outcome=Outcome.TRAINED)
        ages = histograms.of_ages(trained.values_list("age", "num_scored"))
        histograms.observe(run.pk, report.version, ages)
    announce(run)


@receiver(group_stored, dispatch_uid="metrics.group")
def store_group(group: Group, **_: Any) -> None:
    if group.run is None:
        return
    if group.uri:
        values = {
            "group/reward_mean": group.reward_mean,
            "group/reward_std": group.reward_std,
            "group/duration_seconds": group.duration_seconds,
        }
        values |= errors_by_boundary(group)
        store_points(group.run, group.policy_version, values, measured=True, at=timezone.now())
        histograms.observe(group.run.pk, group.policy_version, histograms.of_group(group))
    announce(group.run)


@receiver(install_finished, dispatch_uid="metrics.install")
def store_install(install: FleetInstall, answer: PolicyInstalled | None = None, **_: Any) -> None:
    if install.run is None:
        return
    if install.state == InstallState.CONFIRMED and install.version > 0:
        values = {
            "fleet/pause_seconds": install.pause_seconds,
            "fleet/steady_gap_seconds": install.steady_gap_seconds,
            "fleet/install_seconds": install.duration_seconds,
            "fleet/policy_version": float(install.version),
            "fleet/update_bytes": float(install.num_bytes),
            "fleet/update_density": answer.density if answer else None,
        }
        now = timezone.now()
        store_points(install.run, install.version, values, attempt=install.attempt, measured=True, at=now)
    announce(install.run)


@receiver(worker_sampled, dispatch_uid="metrics.sample")
def store_sample(run: Run | None, sample: WorkerSample, **_: Any) -> None:
    """A sample of the fleet belongs to every run that uses it now; nobody looks at the engines of full runs."""
    values: dict[str, float | None] = {f"{sample.source}/{name}": value for name, value in sample.metrics.items()}
    users = Run.objects.filter(state=RunState.RUNNING).order_by("id")
    if sample.source == "engine":
        users = users.filter(whole_weights=False)
    for user in [run] if run else users:
        store_points(user, user.step, values, measured=False, at=timezone.now())
        announce(user)


@receiver(run_changed, dispatch_uid="metrics.changed")
def announce_change(run: Run, **_: Any) -> None:
    announce(run)


@receiver(run_event, dispatch_uid="metrics.event")
def announce_event(event: RunEvent, **_: Any) -> None:
    announce(event.run)
