"""Pages of evaluations, and of what is evaluated: suites, tasks, policies."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from apps.accounts.permissions import Permission, has_permission, visible_projects
from apps.evaluations.gap import suite_gap
from apps.evaluations.measurement_views import measured_errors
from apps.evaluations.models import EvaluationPurpose, EvaluationState
from apps.evaluations.results import TaskOutcome
from apps.evaluations.selectors import (
    ROTATION_AFTER,
    evaluation_results,
    evaluations_of,
    find_evaluation,
    heldout_ledger,
    measured_success,
    visible_evaluations,
)
from apps.policies.selectors import find_policy, lineage
from apps.runs.selectors import verdicts_of, visible_runs
from apps.tasks.contracts import contract_of
from apps.tasks.measurements.selectors import newest as newest_measurement
from apps.tasks.models import SplitName, TaskState
from apps.tasks.reports.models import ReportState
from apps.tasks.reports.selectors import is_stale, newest_report
from apps.tasks.selectors import (
    check_progress,
    find_suite,
    find_task,
    is_protected,
    load_bundle,
    may_read_content,
    representativeness,
)
from apps.tasks.services import note_heldout_look
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 25
_TASKS_PER_PAGE = 50
_MAX_TASKS = 300


@login_required
def evaluations(request: HttpRequest) -> HttpResponse:
    """Every evaluation the reader may see, newest first."""
    user = reader(request)
    chosen = filters(request, "project", "purpose", "state")
    fields = {"project": "project__slug", "purpose": "purpose", "state": "state"}
    found = visible_evaluations(user).filter(**{fields[name]: value for name, value in chosen.items() if value})
    paginator = Paginator(found, _PER_PAGE)
    return page(
        request, "evaluations.html", here="gates", page_of=paginator.get_page(request.GET.get("page")), chosen=chosen,
        query=query_of(chosen), num_found=paginator.count,
        projects=[(project.slug, project.title) for project in visible_projects(user)],
        purposes=EvaluationPurpose.choices, states=EvaluationState.choices,
    )  # fmt: skip


@login_required
def evaluation(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Arms with their intervals; task by task for who may read the tasks."""
    user = reader(request)
    found = find_evaluation(user, pk)
    results = evaluation_results(user, found)
    if results.tasks and is_protected(found.split):
        note_heldout_look(suite=found.suite, by=user, task_keys=[task.key for task in results.tasks])
    arms = sorted((arm for arm in results.arms if arm.success is not None), key=lambda arm: arm.success or 0.0)
    highest = max((arm.high or 0.0 for arm in arms), default=1.0)
    return page(
        request, "evaluation.html", here="gates", evaluation=found, results=results,
        shown=_differing_first(results.tasks or [])[:_MAX_TASKS],
        drawn=[{**vars(arm), "role": ""} for arm in arms], axis_max=min(1.0, max(0.2, (int(highest * 10) + 1) / 10)),
    )  # fmt: skip


def _differing_first(tasks: list[TaskOutcome]) -> list[TaskOutcome]:
    """Tasks on which the arms disagree come first."""

    def agree(task: TaskOutcome) -> bool:
        return len({task.success(arm) for arm in range(len(task.arms))}) <= 1

    return sorted(tasks, key=agree)


@login_required
def suite(request: HttpRequest, pk: UUID) -> HttpResponse:
    """What a suite is a sample of, what it covers, what was set aside, who looked at its held-out tasks."""
    user = reader(request)
    found = find_suite(user, pk)
    chosen = filters(request, "split", "state", "q")
    tasks = found.tasks.order_by("position")
    if chosen["split"]:
        tasks = tasks.filter(split=chosen["split"])
    if chosen["state"]:
        tasks = tasks.filter(state=chosen["state"])
    if chosen["q"]:
        tasks = tasks.filter(key__icontains=chosen["q"])
    paginator = Paginator(tasks, _TASKS_PER_PAGE)
    report = newest_report(found)
    rows = paginator.get_page(request.GET.get("page"))
    quarantined = list(found.tasks.filter(state=TaskState.QUARANTINED).order_by("position")[:100])
    reads_heldout = has_permission(user, Permission.HELDOUT_READ, found.project)
    if reads_heldout and (keys := sorted({t.key for t in (*rows, *quarantined) if is_protected(t.split)})):
        note_heldout_look(suite=found, by=user, task_keys=keys)
    return page(
        request, "suite.html", here="suites", suite=found, coverage=representativeness(found), chosen=chosen,
        page_of=rows, num_tasks=paginator.count, query=query_of(chosen), quarantined=quarantined,
        released=list(found.tasks.exclude(released_at=None).select_related("released_by").order_by("position")[:100]),
        may_release=has_permission(user, Permission.TASK_RELEASE, found.project),
        may_check=has_permission(user, Permission.SUITE_CREATE, found.project), progress=check_progress(found),
        measurement=newest_measurement(found), measured=measured_errors(found),
        report=report, report_is_stale=report is not None and report.state == ReportState.READY and is_stale(report),
        computes_report=has_permission(user, Permission.EVALUATION_CREATE, found.project),
        gap=suite_gap(user, found),
        ledger=heldout_ledger(found), rotation_after=ROTATION_AFTER, splits=SplitName.choices,
        task_states=TaskState.choices, reads_heldout=reads_heldout, is_protected=is_protected,
        runs=list(visible_runs(user).filter(suite=found)[:10]),
        evaluations=list(visible_evaluations(user).filter(suite=found)[:10]),
    )  # fmt: skip


@login_required
def task(request: HttpRequest, pk: UUID) -> HttpResponse:
    """What is asked and checked. Held-out content needs its own right, and showing it is written down."""
    user = reader(request)
    found = find_task(user, pk)
    readable = may_read_content(user, found)
    if readable and is_protected(found.split):
        note_heldout_look(suite=found.suite, by=user, task_keys=[found.key])
    return page(
        request, "task.html", here="suites", task=found, suite=found.suite, readable=readable,
        contract=contract_of(user, found),
        bundle=load_bundle(found) if readable else None, verdicts=verdicts_of(user, found) if readable else [],
    )  # fmt: skip


@login_required
def policy(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Where a policy came from, what it is, where it serves, how good it was measured."""
    user = reader(request)
    found = find_policy(user, pk)
    run = visible_runs(user).filter(pk=found.run_id).first() if found.run_id else None
    return page(
        request, "policy.html", here="policies", policy=found, family=lineage(user, found), run=run,
        channels=list(found.channels.select_related("project")), measured=measured_success(found),
        evaluations=list(evaluations_of(user, found)[:20]),
        runs_from=list(visible_runs(user).filter(policy=found)[:10]),
    )  # fmt: skip
