"""Pages of runs: the list with its filters, and the live page of one run."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import QuerySet, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from apps.accounts.permissions import Permission, has_permission, visible_projects
from apps.metrics.charts import chart_list
from apps.metrics.measurements import rewards_by_version
from apps.metrics.presentation import is_supervised
from apps.metrics.selectors import live_page, series
from apps.runs.models import FINAL_RUN_STATES, Run, RunState
from apps.runs.selectors import checkpoints_of, find_run, fleet_words, stale_tasks, visible_runs, what_is_trained
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 25
CHARTED = [
    "fleet/pause_seconds", "train/clip_fraction", "train/entropy", "train/grad_norm", "train/kl_behaviour_k3",
    "train/learning_rate", "train/loss", "train/publish_seconds", "train/tokens_per_second", "train/train_seconds",
    "train/wait_seconds",
]  # fmt: skip


@login_required
def runs(request: HttpRequest) -> HttpResponse:
    """Every run the reader may see, newest first; the filters are in the URL."""
    user = reader(request)
    chosen = filters(request, "project", "state", "suite", "q")
    found = _filtered(visible_runs(user), chosen)
    paginator = Paginator(found, _PER_PAGE)
    rows = paginator.get_page(request.GET.get("page"))
    suites = sorted(set(visible_runs(user).order_by().values_list("suite__slug", flat=True)))
    return page(
        request, "runs.html", here="runs", page_of=rows, rows=[run_row(run) for run in rows], chosen=chosen,
        query=query_of(chosen),
        projects=[(project.slug, project.title) for project in visible_projects(user)],
        states=RunState.choices, suites=[(slug, slug) for slug in suites], num_runs=paginator.count,
    )  # fmt: skip


def _filtered(found: QuerySet[Run], chosen: dict[str, str]) -> QuerySet[Run]:
    if chosen["project"]:
        found = found.filter(project__slug=chosen["project"])
    if chosen["state"]:
        found = found.filter(state=chosen["state"])
    if chosen["suite"]:
        found = found.filter(suite__slug=chosen["suite"])
    if chosen["q"]:
        found = found.filter(name__icontains=chosen["q"])
    return found


def run_row(run: Run) -> dict[str, Any]:
    """One line of a list of runs: rewards by version, cost so far, age."""
    rewards = _whole(rewards_by_version(run.pk), run.spec["rollout"]["prompts_per_batch"])
    values = [rewards[version]["mean"] for version in sorted(rewards)]
    newest = rewards[max(rewards)] if rewards else None
    started = run.started_at or run.created_at
    return {
        "run": run,
        "algorithm": run.spec["algorithm"]["kind"].upper() + ", " + what_is_trained(run),
        "values": values,
        "low": min(values, default=0.0),
        "high": max(max(values, default=1.0), min(values, default=0.0) + 0.05),
        "newest": newest,
        "supervised": is_supervised(run),
        "age": ((run.finished_at or timezone.now()) - started).total_seconds(),
        "cpu_seconds": run.attempts.aggregate(total=Sum("cpu_seconds"))["total"],
    }


def _whole(rewards: dict[int, dict[str, Any]], batch_size: int) -> dict[int, dict[str, Any]]:
    """Without the newest version while fewer groups than a batch are in: quick episodes finish first."""
    newest = max(rewards, default=None)
    if newest is None or len(rewards) == 1 or rewards[newest]["groups"] >= batch_size:
        return rewards
    return {version: reward for version, reward in rewards.items() if version != newest}


@login_required
def run(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One run, live: drawn from the database, then kept up to date by its socket."""
    user = reader(request)
    found = find_run(user, pk)
    state = live_page(found)
    data = {
        **{name: value for name, value in state.items() if name != "points"},
        "series": series(found, CHARTED),
        "batch_size": found.spec["rollout"]["prompts_per_batch"],
    }
    return page(
        request, "run.html", here="runs", charts=True, run=found, view=state["view"], state=state, data=data,
        charts_list=chart_list(supervised=is_supervised(found)), supervised=is_supervised(found),
        may_control=has_permission(user, Permission.RUN_CONTROL, found.project),
        may_read_episodes=has_permission(user, Permission.EPISODE_READ, found.project),
        final=found.state in FINAL_RUN_STATES, checkpoints=list(checkpoints_of(found)), stale=stale_tasks(found, 5),
        evaluations=list(found.evaluations.order_by("-id")), trained=what_is_trained(found), fleet=fleet_words(found),
        failures=state["tables"]["failures"] if state["tables"] else None,
    )  # fmt: skip
