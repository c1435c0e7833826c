"""Verify the audit trail of every project, or of some; the exit status is 1 where one is broken."""

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from apps.accounts.models import Project
from apps.audit.verification import verify_chain


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "projects", nargs="*", help="slugs; all where none is given, with the platform's own events"
        )
        parser.add_argument("--anchor", default="", help="sequence:hash noted earlier, with exactly one project")

    def handle(self, *args: Any, **options: Any) -> None:
        slugs = options["projects"]
        projects: list[Project | None] = list(
            Project.objects.filter(slug__in=slugs) if slugs else Project.objects.all()
        )
        if missing := set(slugs) - {project.slug for project in projects if project}:
            raise CommandError(f"There is no project {', '.join(sorted(missing))}.")
        anchor = self._anchor(options["anchor"], projects)
        broken = 0
        for project in [*projects, *([] if slugs else [None])]:
            report = verify_chain(project, anchor=anchor)
            broken += not report.ok
            state = "ok    " if report.ok else "BROKEN"
            name = project.slug if project else "(platform)"
            self.stdout.write(f"{state} {name}: {report.message} Head {report.num_events}:{report.head or '-'}")
        if broken:
            sys.exit(1)

    def _anchor(self, text: str, projects: list[Project | None]) -> tuple[int, str] | None:
        if not text:
            return None
        sequence, _, digest = text.partition(":")
        if len(projects) != 1 or not sequence.isdecimal() or not digest:
            raise CommandError("--anchor is sequence:hash, and goes with exactly one project.")
        return int(sequence), digest
