"""Pages of gates, and home: what needs me now."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse

from apps.accounts.permissions import visible_projects
from apps.evaluations.selectors import heldout_budgets
from apps.metrics.views import run_row
from apps.promotions import home as home_page
from apps.promotions.models import Gate, GateState, GateVerdict
from apps.promotions.presentation import gate_view, progress
from apps.promotions.selectors import find_gate, gate_page, visible_gates
from apps.reviews.selectors import num_waiting
from apps.tasks.services import note_heldout_look
from ratchet.pages import filters, page, query_of, reader

_PER_PAGE = 25


@login_required
def home(request: HttpRequest) -> HttpResponse:
    """What waits for this person, what is in production, what runs now."""
    user = reader(request)
    needs = home_page.needs(user)
    return page(
        request, "home.html", here="home", needs=needs, lines=home_page.headline(needs, num_waiting(user)),
        steady=home_page.steady(user), productions=home_page.productions(user), budgets=heldout_budgets(user),
        rows=[run_row(run) for run in home_page.runs_now(user)], projects=list(visible_projects(user)),
    )  # fmt: skip


@login_required
def gates(request: HttpRequest) -> HttpResponse:
    """Every gate the reader may see, newest first; the filters are in the URL."""
    user = reader(request)
    chosen = filters(request, "project", "state", "verdict")
    fields = {"project": "project__slug", "state": "state", "verdict": "verdict"}
    found = visible_gates(user).filter(**{fields[name]: value for name, value in chosen.items() if value})
    paginator = Paginator(found, _PER_PAGE)
    return page(
        request, "gates.html", here="gates", page_of=paginator.get_page(request.GET.get("page")), chosen=chosen,
        query=query_of(chosen), num_gates=paginator.count,
        projects=[(project.slug, project.title) for project in visible_projects(user)],
        states=GateState.choices, verdicts=GateVerdict.choices,
    )  # fmt: skip


@login_required
def gate(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The verdict with its evidence, and the decision form. Who is shown held-out answers is written down."""
    user = reader(request)
    found = gate_page(user, find_gate(user, pk))
    tasks: dict[str, Any] = found.report.get("tasks", {})
    keys = [row["key"] for name in ("worse", "better") for row in tasks.get(name, [])]
    if keys:
        note_heldout_look(suite=found.gate.evaluation.suite, by=user, task_keys=keys)
    return page(
        request, "gate.html", here="gates", found=found, gate=found.gate, report=found.report, view=gate_view(found),
        teeth=home_page.teeth(found.gate.channel, found.gate if found.gate.state == GateState.WAITING else None),
        progress=progress(found.gate),
    )  # fmt: skip


@login_required
def gate_progress(request: HttpRequest, pk: UUID) -> JsonResponse:
    """How far a gate's evaluation or replay is; the page asks while it waits."""
    found: Gate = find_gate(reader(request), pk)
    return JsonResponse(progress(found))
