"""`manage.py import_suite bfcl|toolbox --project demo`: import a suite that comes with the platform."""

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.models import Project
from apps.tasks.models import Suite, SuiteState
from apps.tasks.sources import BUILDERS, import_source
from ratchet.problems import Problem

_POLL_SECONDS = 1.0


class Command(BaseCommand):
    help = "Import a suite that comes with the platform. Repeating it with the same content changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", choices=sorted(BUILDERS))
        parser.add_argument("--project", default="demo", help="slug of the project")
        parser.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="wait for the checks so long")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"--project {options['project']!r} does not exist: make it with `manage.py bootstrap`")
        try:
            suite = import_source(project=project, source=options["source"], by=None)
        except Problem as problem:
            lines = [problem.detail, *(f"  {error['path']}: {error['message']}" for error in problem.errors)]
            raise CommandError("\n".join(lines)) from problem
        suite = self._wait(suite, options["wait"])
        state = suite.get_state_display().lower()
        self.stdout.write(f"{suite} in {project.slug}: {suite.tasks.count()} tasks, {state}. {suite.status_message}")
        if suite.state == SuiteState.FAILED:
            raise CommandError(suite.status_message)

    @staticmethod
    def _wait(suite: Suite, seconds: float) -> Suite:
        stop = time.monotonic() + seconds
        while suite.state == SuiteState.CHECKING and time.monotonic() < stop:
            time.sleep(_POLL_SECONDS)
            suite.refresh_from_db()
        return suite
