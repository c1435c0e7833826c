"""Registers the promotions app."""

from django.apps import AppConfig


class PromotionsConfig(AppConfig):
    name = "apps.promotions"
    label = "promotions"

    def ready(self) -> None:
        from apps.promotions import receivers  # noqa: F401  connects them
