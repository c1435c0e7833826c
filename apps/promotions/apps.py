"""Registers the promotions app."""

from django.apps import AppConfig


class PromotionsConfig(AppConfig):
    name = "apps.promotions"
    label = "promotions"
