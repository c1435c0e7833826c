"""`manage.py import_suite SOURCE [PATH]`: a suite that comes with the platform, task folders, or an environment."""

import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.models import Project
from apps.tasks.models import Suite, SuiteState
from apps.tasks.sources import BUILDERS, import_path, import_source
from ratchet.problems import Problem

_POLL_SECONDS = 1.0
WITH_PATH = {
    "harbor": "a folder or archive of task folders",
    "environment": "a declaration, as docs/guides/importing.md has",
}


class Command(BaseCommand):
    help = (
        "Import a suite: one that comes with the platform by its name; `harbor PATH --declare FILE` for a folder or an "
        "archive of Harbor tasks; `environment FILE` for an environment built with verifiers or OpenEnv. "
        "Repeating it with the same content changes nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", choices=[*sorted(BUILDERS), *WITH_PATH])
        parser.add_argument("path", nargs="?", type=Path, help="folder, archive or declaration (TOML)")
        parser.add_argument(
            "--declare", type=Path, metavar="FILE", help="declaration of a suite of Harbor tasks (TOML)"
        )
        parser.add_argument("--project", default="demo", help="slug of the project")
        parser.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="wait for the checks so long")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"--project {options['project']!r} does not exist: make it with `manage.py bootstrap`")
        try:
            suite = self._import(project, options)
        except Problem as problem:
            lines = [problem.detail, *(f"  {error['path']}: {error['message']}" for error in problem.errors)]
            raise CommandError("\n".join(lines)) from problem
        suite = self._wait(suite, options["wait"])
        state = suite.get_state_display().lower()
        for note in suite.import_notes:
            self.stdout.write(f"  {note['path']}: {note['message']}")
        self.stdout.write(f"{suite} in {project.slug}: {suite.tasks.count()} tasks, {state}. {suite.status_message}")
        if suite.state == SuiteState.FAILED:
            raise CommandError(suite.status_message)

    @staticmethod
    def _import(project: Project, options: dict[str, Any]) -> Suite:
        source, path = options["source"], options["path"]
        if source not in WITH_PATH:
            return import_source(project=project, source=source, by=None)
        if path is None:
            raise CommandError(f"{source} needs a PATH: {WITH_PATH[source]}")
        return import_path(project=project, source=source, path=path, declared=options["declare"], by=None)

    @staticmethod
    def _wait(suite: Suite, seconds: float) -> Suite:
        stop = time.monotonic() + seconds
        while suite.state == SuiteState.CHECKING and time.monotonic() < stop:
            time.sleep(_POLL_SECONDS)
            suite.refresh_from_db()
        return suite
