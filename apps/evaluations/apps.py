"""Registers the evaluations app."""

from django.apps import AppConfig


class EvaluationsConfig(AppConfig):
    name = "apps.evaluations"
    label = "evaluations"

    def ready(self) -> None:
        from apps.evaluations import attempts, receivers  # noqa: F401  connects them
