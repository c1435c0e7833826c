"""Dispatch of a run's waiting groups: as many as the fleet takes, in fair shares, always with the newest version."""

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, QuerySet, Sum
from django.utils import timezone

from apps.runs.models import FleetInstall, FleetLoad, Group, GroupState, InstallState, Run, RunState
from apps.runs.scheduling import capacity
from apps.runs.services import installs
from apps.runs.services.groups import UNFINISHED_STATES, dispatch_group, due
from gpu_workers.contracts.runspec import RunSpec

_USERS = (RunState.STARTING, RunState.RUNNING)
LOOK_BACK = timedelta(minutes=10)  # at finished groups
NUM_SERVED = 64
LOAD_LASTS = timedelta(seconds=20)  # four looks at the engines
FIRST_GROUPS = 8  # sent before anything is known of the fleet; two batches where those are more


def dispatch_pending(run: Run, spec: RunSpec, now: datetime) -> list[Group]:
    """Send waiting groups; none while the fleet is being brought back to a confirmed version."""
    repairs = FleetInstall.objects.filter(run=run, state=InstallState.REQUESTED, version__lte=run.confirmed_version)
    if not run.groups.filter(state=GroupState.PENDING).exists() or repairs.exists():
        return []
    free = _share(run, spec, now) - run.groups.filter(state=GroupState.RUNNING).count()
    if free <= 0:
        return []
    names = installs.policy_names(run, run.confirmed_version)
    sent = list(due(run.groups.all(), now)[:free])
    for group in sent:
        group.run = run
        # Nothing of it is sampled, or what was is given up: it needs no older version than the newest.
        group.policy_adapter, group.policy_weights = names["policy_adapter"], names["policy_weights"]
        group.policy_version = run.confirmed_version
        dispatch_group(group)
    return sent


def _share(run: Run, spec: RunSpec, now: datetime) -> int:
    """Groups that this run may have with the workers at once."""
    least = max(FIRST_GROUPS, 2 * spec.rollout.prompts_per_batch)
    fleet = _users_of_its_fleet(run)
    workers = capacity.measure_capacity(_served(fleet, now), least)
    bounds = [workers.num_groups] if workers.saturated else []
    load = _load(run, now)
    groups = Group.objects.filter(run__in=fleet)
    if load["at"] is not None:
        sent = groups.filter(dispatched_at__gt=load["at"]).aggregate(n=Sum("size", default=0))["n"]
        seen = capacity.EngineLoad(load["running"], load["queued"])
        size = spec.rollout.group_size
        in_flight = groups.filter(state=GroupState.RUNNING).count()
        bounds.append(in_flight + capacity.engine_room(seen, sent, least * size) // size)
    if not bounds:
        return workers.num_groups
    demands = groups.filter(state__in=UNFINISHED_STATES).values_list("run").order_by()
    claims = dict(demands.annotate(n=Count("id", filter=~Q(not_before__gt=now))))
    # One each at the least: of a fleet that takes fewer groups than there are runs, the rest would go without for ever.
    return capacity.fair_shares(max(min(bounds), len(claims)), claims).get(run.pk, 0)


def _users_of_its_fleet(run: Run) -> QuerySet[Run]:
    """Runs that share its engines; one that replaces all weights has them to itself."""
    if run.whole_weights:
        return Run.objects.filter(pk=run.pk)
    return Run.objects.filter(policy__base_model=run.policy.base_model_id, state__in=_USERS, whole_weights=False)


def rollouts_supplied(run: Run) -> bool:
    """Whether the fleet has more to do than it can take: groups wait to be sent, or requests in the engines."""
    if run.groups.filter(state=GroupState.PENDING, not_before=None).exists():
        return True
    return bool(_load(run, timezone.now())["queued"])


def _load(run: Run, now: datetime) -> dict[str, Any]:
    """Running and queued requests of the engines that adapters share, and since when; nulls where nobody looked."""
    if run.whole_weights:
        return {"running": None, "queued": None, "at": None}
    fresh = FleetLoad.objects.filter(at__gt=now - LOAD_LASTS)
    return fresh.aggregate(running=Sum("running_requests"), queued=Sum("queued_requests"), at=Min("at"))


def note_load(worker: str, running: float, queued: float, now: datetime) -> None:
    """What a fleet worker saw in its engines."""
    values = {"running_requests": running, "queued_requests": queued, "at": now}
    FleetLoad.objects.update_or_create(worker=worker[:200], defaults=values)


def _served(fleet: QuerySet[Run], now: datetime) -> list[capacity.Served]:
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
