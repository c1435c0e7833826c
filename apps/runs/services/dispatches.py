"""Dispatch of a run's waiting groups: as many as the fleet takes, in fair shares, always with the newest version."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet

from apps.runs.models import FleetInstall, Group, GroupState, InstallState, Run, RunState
from apps.runs.scheduling import capacity
from apps.runs.services import installs
from apps.runs.services.groups import UNFINISHED_STATES, dispatch_group, due
from gpu_workers.contracts.runspec import RunSpec

_USERS = (RunState.STARTING, RunState.RUNNING)
LOOK_BACK = timedelta(minutes=10)  # at finished groups
NUM_SERVED = 64
FIRST_GROUPS = 8  # sent before anything is known of the fleet; two batches where those are more


def dispatch_pending(run: Run, spec: RunSpec, now: datetime) -> list[Group]:
    """Send waiting groups; none while the fleet is being brought back to a confirmed version."""
    repairs = FleetInstall.objects.filter(run=run, state=InstallState.REQUESTED, version__lte=run.confirmed_version)
    if not run.groups.filter(state=GroupState.PENDING).exists() or repairs.exists():
        return []
    free = _share(run, spec, now) - run.groups.filter(state=GroupState.RUNNING).count()
    if free <= 0:
        return []
    adapter = installs.adapter_name(run, run.confirmed_version)
    sent = list(due(run.groups.all(), now)[:free])
    for group in sent:
        group.run = run
        # Nothing of it is sampled, or what was is given up: it needs no older version than the newest.
        group.policy_adapter, group.policy_version = adapter, run.confirmed_version
        dispatch_group(group)
    return sent


def _share(run: Run, spec: RunSpec, now: datetime) -> int:
    """Groups that this run may have with the workers at once."""
    least = max(FIRST_GROUPS, 2 * spec.rollout.prompts_per_batch)
    fleet: QuerySet[Any] = Run.objects.filter(policy__base_model=run.policy.base_model_id, state__in=_USERS).values(
        "pk"
    )
    found = capacity.measure_capacity(_served(fleet, now), least)
    if not found.saturated:
        return found.num_groups
    demands = Group.objects.filter(run__in=fleet, state__in=UNFINISHED_STATES).values_list("run").order_by()
    claims = dict(demands.annotate(n=Count("id", filter=~Q(not_before__gt=now))))
    return capacity.fair_shares(found.num_groups, claims).get(run.pk, 0)


def _served(fleet: QuerySet[Any], now: datetime) -> list[capacity.Served]:
    """What the fleet finished last, whichever run it was for."""
    rows = Group.objects.filter(run__in=fleet, finished_at__gt=now - LOOK_BACK, started_at__isnull=False)
    newest = rows.order_by("-finished_at").values_list("dispatched_at", "started_at", "finished_at")[:NUM_SERVED]
    return [
        capacity.Served(
            waited=max(0.0, (started - sent).total_seconds()),
            took=max(0.0, (ended - started).total_seconds()),
            finished=ended.timestamp(),
        )
        for sent, started, ended in newest
        if sent and started and ended
    ]
