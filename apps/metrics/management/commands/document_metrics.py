"""Write docs/metrics.md from the registry."""

from typing import Any

from django.core.management.base import BaseCommand

from apps.metrics.documentation import metrics_page
from ratchet.env import ROOT


class Command(BaseCommand):
    help = __doc__

    def handle(self, *args: Any, **options: Any) -> None:
        path = ROOT / "docs" / "metrics.md"
        path.write_text(metrics_page(), encoding="utf-8")
        self.stdout.write(f"{path}: written")
