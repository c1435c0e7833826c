"""Registers the webhooks app."""

from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "apps.webhooks"
    label = "webhooks"

    def ready(self) -> None:
        from apps.webhooks import receivers  # noqa: F401  connects itself
