"""Registers the metrics app."""

from django.apps import AppConfig


class MetricsConfig(AppConfig):
    name = "apps.metrics"
    label = "metrics"

    def ready(self) -> None:
        from apps.metrics import receivers  # noqa: F401  connects them
