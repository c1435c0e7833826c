"""`manage.py measure_verifier human-eval --wait 900`: measure how often a suite's verifier is wrong."""

import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.accounts.models import Project
from apps.tasks.measurements.models import MeasurementState, VerifierMeasurement
from apps.tasks.measurements.selectors import outcomes_of
from apps.tasks.measurements.services import measure_answer_key, request_measurement
from apps.tasks.selectors import resolve_suite
from apps.tasks.suites.errors import SuiteError
from ratchet.problems import Problem

_POLL_SECONDS = 1.0


class Command(BaseCommand):
    help = "Measure a suite's verifier on mutants of its references, or an older answer key against the present one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("suite", help="slug, or slug@version")
        parser.add_argument("--project", default="demo", help="slug of the project")
        parser.add_argument("--per-task", type=int, default=3, help="mutants of a task, at most")
        parser.add_argument("--max-tasks", type=int, default=0, help="0: all")
        parser.add_argument("--num-inputs", type=int, default=150, help="inputs of the stronger check, at most, a task")
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--older", type=Path, metavar="FOLDER", help="data files of an older release of bfcl-eval")
        parser.add_argument("--label", default="older answer key", help="what the older release is called")
        parser.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="wait for the workers so long")

    def handle(self, *args: Any, **options: Any) -> None:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            raise CommandError(f"--project {options['project']!r} does not exist: make it with `manage.py bootstrap`")
        names = ("per_task", "max_tasks", "num_inputs", "seed")
        try:
            suite = resolve_suite(project, options["suite"])
            if options["older"]:
                found = measure_answer_key(suite=suite, by=None, older=options["older"], label=options["label"])
            else:
                found = request_measurement(suite=suite, by=None, options={name: options[name] for name in names})
        except Problem as problem:
            lines = [problem.detail, *(f"  {error['path']}: {error['message']}" for error in problem.errors)]
            raise CommandError("\n".join(lines)) from problem
        except SuiteError as error:
            raise CommandError(f"--older: {error}") from error
        self._report(self._wait(found, options["wait"]))

    @staticmethod
    def _wait(measurement: VerifierMeasurement, seconds: float) -> VerifierMeasurement:
        stop = time.monotonic() + seconds
        while measurement.state == MeasurementState.RUNNING and time.monotonic() < stop:
            time.sleep(_POLL_SECONDS)
            measurement.refresh_from_db()
        return measurement

    def _report(self, measurement: VerifierMeasurement) -> None:
        self.stdout.write(f"{measurement}: {measurement.get_state_display().lower()}. {measurement.status_message}")
        if measurement.state == MeasurementState.FAILED:
            raise CommandError(measurement.status_message)
        outcomes = outcomes_of(measurement)
        for name, verdict, truth in (("passed", "pass", "wrong"), ("failed", "fail", "right")):
            among = [outcome for outcome in outcomes if outcome.truth == truth]
            count = sum(outcome.verdict == verdict for outcome in among)
            self.stdout.write(f"{count} of {len(among)} {truth} candidates {name}")
        self.stdout.write(f"Rates with intervals: /suites/{measurement.suite_id}/verifier/")
