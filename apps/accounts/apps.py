"""Registers the accounts app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "apps.accounts"
    label = "accounts"

    def ready(self) -> None:
        from apps.accounts import lockout  # noqa: F401  connects its receivers
        from apps.accounts.api import schema  # noqa: F401  registers itself
