"""URLs of metrics below /api/v1/."""

from django.urls import path

from apps.metrics.api import views

urlpatterns = [
    path("metrics/", views.MetricRegistry.as_view(), name="api-metrics"),
    path("runs/<uuid:pk>/metrics/", views.RunMetrics.as_view(), name="api-run-metrics"),
    path("runs/<uuid:pk>/live/", views.RunLive.as_view(), name="api-run-live"),
]
