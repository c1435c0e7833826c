"""Pages of webhooks: those of a project, one with its delivery log, one delivery with its attempts."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from apps.accounts.permissions import Permission, find_project
from apps.webhooks import services
from apps.webhooks.models import DeliveryState, Webhook
from apps.webhooks.selectors import deliveries_of, find_delivery, find_webhook, visible_webhooks
from apps.webhooks.signing import secret_of
from ratchet.pages import filters, page, query_of, reader
from ratchet.problems import Problem

_PER_PAGE = 50


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def webhooks(request: HttpRequest, slug: str) -> HttpResponse:
    """The project's webhooks, and a form for another. A new secret is shown in this answer only."""
    user = reader(request)
    project = find_project(user, slug, Permission.WEBHOOK_MANAGE)
    typed, secret, error = {"url": "", "events": "run:* gate:*"}, "", ""
    if request.method == "POST":
        typed = {name: request.POST.get(name, "").strip() for name in typed}
        try:
            made = services.create_webhook(
                project=project, url=typed["url"][:500], events=typed["events"].split(), by=user
            )
            secret = secret_of(made.pk, made.secret_version)
        except Problem as problem:
            error = " ".join(f"{e['path']}: {e['message']}." for e in problem.errors) or problem.detail
    response = page(
        request, "webhooks.html", project=project, webhooks=list(visible_webhooks(user).filter(project=project)),
        typed=typed, secret=secret, error=error,
    )  # fmt: skip
    if secret:
        response["Cache-Control"] = "no-store"
    return response


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def webhook(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One webhook with its log; its buttons try it, switch it, give it a new secret, take it away."""
    user = reader(request)
    found = find_webhook(user, pk)
    secret = ""
    if request.method == "POST":
        match request.POST.get("do", ""):
            case "test":
                return redirect("webhook-delivery", pk=services.send_test(webhook=found, by=user).pk)
            case "switch":
                services.change_webhook(webhook=found, by=user, enabled=not found.enabled)
                return redirect("webhook", pk=pk)
            case "rotate":
                secret = services.rotate_secret(webhook=found, by=user)
            case "delete":
                services.delete_webhook(webhook=found, by=user)
                return redirect("webhooks", slug=found.project.slug)
    response = _log(request, found, secret)
    if secret:
        response["Cache-Control"] = "no-store"
    return response


def _log(request: HttpRequest, found: Webhook, secret: str) -> HttpResponse:
    chosen = filters(request, "state")
    rows = deliveries_of(found)
    if chosen["state"] in DeliveryState.values:
        rows = rows.filter(state=chosen["state"])
    paginator = Paginator(rows, _PER_PAGE)
    return page(
        request, "webhook.html", webhook=found, page_of=paginator.get_page(request.GET.get("page")), chosen=chosen,
        query=query_of(chosen), states=DeliveryState.choices, secret=secret,
    )  # fmt: skip


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def delivery(request: HttpRequest, pk: UUID) -> HttpResponse:
    """One delivery: the message, each attempt with what was answered; the button sends it again."""
    user = reader(request)
    found = find_delivery(user, pk)
    if request.method == "POST":
        return redirect("webhook-delivery", pk=services.redeliver(delivery=found, by=user).pk)
    return page(request, "webhook_delivery.html", delivery=found, webhook=found.webhook)
