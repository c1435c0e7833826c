"""Registers the runs app."""

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "apps.runs"
    label = "runs"

    def ready(self) -> None:
        from apps.runs.services import versions  # noqa: F401  connects its receiver
