"""Engines and workers of a run, as the live page lists them."""

from typing import Any

from django.utils import timezone

from apps.runs.models import AttemptState, GroupState, InstallState, Run


def engines_and_workers(run: Run) -> list[dict[str, Any]]:
    """One row per process that the platform has heard of: trainer, engines, and the groups at rollout workers."""
    rows = [*_trainer(run), *_engines(run)]
    running = run.groups.filter(state=GroupState.RUNNING)
    count = running.count()
    if count:
        oldest = running.order_by("dispatched_at").first()
        seconds = (timezone.now() - oldest.dispatched_at).total_seconds() if oldest and oldest.dispatched_at else None
        rows.append(
            {"kind": "rollout", "name": "rollout workers", "state": f"{count} groups", "oldest_seconds": seconds}
        )
    return rows


def _trainer(run: Run) -> list[dict[str, Any]]:
    attempt = run.attempts.order_by("-number").first()
    if attempt is None:
        return []
    beat = attempt.heartbeat_at
    return [
        {
            "kind": "trainer",
            "name": attempt.worker or "trainer",
            "state": attempt.activity if attempt.state == AttemptState.RUNNING else attempt.state,
            "attempt": attempt.number,
            "heartbeat_seconds": (timezone.now() - beat).total_seconds() if beat else None,
            "cpu_seconds": attempt.cpu_seconds,
            "memory_bytes": attempt.memory_bytes,
        }
    ]


def _engines(run: Run) -> list[dict[str, Any]]:
    install = run.installs.filter(state=InstallState.CONFIRMED).order_by("-finished_at").first()
    if install is None:
        return []
    digest = install.install[0]["sha256"] if install.install else ""
    return [
        {"kind": "engine", "name": engine, "state": "serving", "version": run.confirmed_version, "sha256": digest}
        for engine in install.engines
    ]
