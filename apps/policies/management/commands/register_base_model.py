"""`manage.py register_base_model SLUG`: make a pretrained model known to the control plane."""

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.policies.services import register_base_model
from ratchet.problems import Problem

DESCRIPTION = "ratchet_model.json"  # written beside the weights when a model is prepared


class Command(BaseCommand):
    help = "Register a base model. What is not given is read from its folder below RATCHET_HOME/models, if it is there."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug")
        parser.add_argument("--title", default="")
        parser.add_argument("--licence", default="", help="SPDX identifier")
        parser.add_argument("--fingerprint", default="", help="SHA-256 of the weights")
        parser.add_argument("--context-length", type=int, default=0)

    def handle(self, *args: Any, **options: Any) -> None:
        models = Path(settings.RATCHET_HOME) / "models"
        described = self._described(models / options["slug"] / DESCRIPTION)
        fingerprint = options["fingerprint"] or described.get("fingerprint", "")
        context_length = options["context_length"] or described.get("context_length", 0)
        if not context_length:
            known = ", ".join(sorted(path.parent.name for path in models.glob(f"*/{DESCRIPTION}"))) or "none yet"
            raise CommandError(
                f"{models} holds no model {options['slug']!r}; it holds {known}. If Ratchet is still preparing it, "
                "wait until it says Ready; for a model that is elsewhere give --context-length"
            )
        try:
            model = register_base_model(
                slug=options["slug"],
                title=options["title"],
                fingerprint=fingerprint,
                licence=options["licence"],
                context_length=context_length,
                by=None,
            )
        except Problem as problem:
            raise CommandError(problem.detail) from problem
        self.stdout.write(f"{model.slug}: {model.title}, {model.context_length} tokens of context")

    @staticmethod
    def _described(path: Path) -> dict[str, Any]:
        try:
            data: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except json.JSONDecodeError as error:
            raise CommandError(f"{path} is damaged ({error}): prepare the model again") from error
        return data
