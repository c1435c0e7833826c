"""Writes of retention: plan a sweep, and apply a plan."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.permissions import require_superuser
from apps.audit.services import record
from apps.retention.models import Sweep
from apps.retention.rules import RULES
from ratchet.problems import Problem

NOTICE = timedelta(hours=24)  # between a plan and its application by the platform itself
STALE = timedelta(days=7)
_EXAMPLES = 5


def plan_sweep(*, now: datetime | None = None) -> Sweep:
    """Look at everything and write down what a deletion would do. Deletes nothing."""
    moment = now or timezone.now()
    findings = {}
    for rule in RULES:
        expired, held = rule.expired(moment), rule.held(moment)
        findings[rule.name] = {
            "expired": expired.count(),
            "pinned": held.count(),
            "bytes": rule.size(expired),
            "examples": [str(pk) for pk in expired.order_by("pk").values_list("pk", flat=True)[:_EXAMPLES]],
        }
    return Sweep.objects.create(planned_at=moment, findings=findings)


def apply_sweep(*, sweep: Sweep, by: User | None) -> Sweep:
    """Delete what the plan found, as far as nothing has pinned it since. Rule by rule: a crash loses no record.

    Raises Problem 409 for a plan that was applied, or is a week old.
    """
    require_superuser(by)
    if sweep.applied_at is not None:
        raise Problem("sweep_applied", 409, "This sweep was applied already: plan another.")
    if sweep.planned_at < timezone.now() - STALE:
        raise Problem("sweep_stale", 409, f"This sweep is older than {STALE.days} days: plan another.")
    deleted = {}
    for rule in RULES:
        rows = rule.expired(sweep.planned_at)
        size, count = rule.size(rows), 0
        if rule.days is not None and sweep.findings.get(rule.name, {}).get("expired"):
            count = rule.delete(rows)
        deleted[rule.name] = {"rows": count, "bytes": size if count else 0}
    with transaction.atomic():
        sweep.applied_at, sweep.applied_by, sweep.deleted = timezone.now(), by, deleted
        sweep.save(update_fields=["applied_at", "applied_by", "deleted"])
        tag = f"{'user' if by else 'system'}:retention:delete"
        record(tag=tag, by=by, project=None, subject=sweep, after=deleted, evidence={"findings": sweep.findings})
    return sweep


def sweep_daily(*, delete: bool) -> Sweep:
    """Apply yesterday's plan where deletion is switched on, then plan today's."""
    if delete:
        ripe = Sweep.objects.filter(
            applied_at__isnull=True, planned_at__lt=timezone.now() - NOTICE, planned_at__gt=timezone.now() - STALE
        ).first()
        if ripe is not None:
            apply_sweep(sweep=ripe, by=None)
    return plan_sweep()
