"""Report what is past its retention; with --delete N, delete what report N found."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.retention.models import Sweep
from apps.retention.rules import RULES
from apps.retention.services import apply_sweep, plan_sweep
from ratchet.problems import Problem


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--delete", type=int, metavar="SWEEP", help="number of the report to apply")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["delete"] is None:
            sweep = plan_sweep()
            self._table(sweep)
            self.stdout.write(f"Nothing was deleted. To delete this: manage.py sweep_retention --delete {sweep.pk}")
            return
        found = Sweep.objects.filter(pk=options["delete"]).first()
        if found is None:
            raise CommandError(f"There is no sweep {options['delete']}.")
        try:
            apply_sweep(sweep=found, by=None)
        except Problem as problem:
            raise CommandError(str(problem)) from problem
        for name, deleted in found.deleted.items():
            self.stdout.write(f"{name}: {deleted['rows']:,} deleted, {deleted['bytes']:,} bytes")

    def _table(self, sweep: Sweep) -> None:
        for rule in RULES:
            found = sweep.findings[rule.name]
            kept = "for ever" if rule.days is None else f"{rule.days} days"
            line = f"{rule.name} ({kept}): {found['expired']:,} expired, {found['bytes']:,} bytes; "
            self.stdout.write(f"{line}{found['pinned']:,} pinned. {rule.what}.")
