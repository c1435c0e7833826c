"""Every URL: pages, REST under /api/v1/, OpenAPI, admin, health and metrics."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularRedocView, SpectacularSwaggerSplitView

from ratchet.health import healthz, metrics
from ratchet.refusals import no_such_endpoint

_APPS = (
    "accounts", "audit", "webhooks", "tasks", "policies", "runs", "metrics", "evaluations", "reviews", "promotions",
    "retention",
)  # fmt: skip

handler403, handler404, handler500 = "ratchet.pages.forbidden", "ratchet.pages.not_found", "ratchet.pages.broken"

urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("healthz", healthz, name="healthz"),
    path("metrics", metrics, name="prometheus-metrics"),
    path("api/v1/schema/", SpectacularJSONAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="swagger"),
    path("api/redoc/", SpectacularRedocView.as_view(url_name="schema", template_name="redoc.html"), name="redoc"),
    *[path("api/v1/", include(f"apps.{app}.api.urls")) for app in _APPS],
    re_path(r"^api/(?P<path>[\s\S]*)$", no_such_endpoint),  # line breaks too
    path("internal/", include("apps.policies.internal")),  # serving gateways, by worker secret
    *[path("", include(f"apps.{app}.urls")) for app in _APPS],
]
