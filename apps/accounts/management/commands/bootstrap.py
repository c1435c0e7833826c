"""`manage.py bootstrap`: the first projects, people and token; safe to repeat."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.bootstrap import PEOPLE, Bootstrap, bootstrap_installation


class Command(BaseCommand):
    help = (
        "Make the demo project, four people and a token for the engineer; admin is superuser of the installation. "
        "Secrets are printed once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--project", action="append", default=[], metavar="SLUG[:TITLE]", help="may be repeated; default demo:Demo"
        )
        for name, role in PEOPLE.items():
            parser.add_argument(f"--{name}-password", default="", help=f"of {name} ({role}); default random")
        parser.add_argument("--new-token", action="store_true", help="issue another token even if there is one")
        parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        projects = dict(self._project(text) for text in options["project"] or ["demo:Demo"])
        passwords = {name: options[f"{name}_password"] for name in PEOPLE}
        result = bootstrap_installation(
            projects=projects,
            passwords={name: password for name, password in passwords.items() if password},
            new_token=options["new_token"],
        )
        self.stdout.write(json.dumps(vars(result)) if options["json"] else self._text(result))

    @staticmethod
    def _project(text: str) -> tuple[str, str]:
        slug, _, title = text.partition(":")
        if not slug.replace("-", "").replace("_", "").isalnum() or not slug.isascii():
            raise CommandError(f"--project {text!r}: the slug may hold letters, digits, - and _ only")
        return slug, title or slug

    @staticmethod
    def _text(result: Bootstrap) -> str:
        lines = [f"Projects: {', '.join(result.projects)}"]
        lines += [f"  {name:9} {password}   ({PEOPLE[name]})" for name, password in result.passwords.items()]
        if result.token:
            lines.append(f"Token of the engineer, shown only now: {result.token}")
        if not result.created and not result.passwords and not result.token:
            lines.append("Everything is there already; nothing was changed.")
        return "\n".join(lines)
