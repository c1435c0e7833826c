"""Where suites come from by name: the builders behind the import command and the API."""

from collections.abc import Callable

from django.conf import settings

from apps.accounts.models import Project, User
from apps.tasks.models import Suite
from apps.tasks.services import import_suite
from apps.tasks.suites import bfcl, definition, human_eval, reasoning_gym, toolbox
from apps.tasks.suites.errors import SuiteError
from ratchet.problems import Problem

BUILDERS: dict[str, Callable[[], definition.Suite]] = {
    "bfcl": bfcl.build,
    "human-eval": human_eval.build,
    "reasoning-gym": lambda: reasoning_gym.build(environments=settings.RATCHET_ENVIRONMENTS_DIR),
    "toolbox": toolbox.build,
}


def import_source(*, project: Project, source: str, by: User | None) -> Suite:
    """Build a suite that comes with the platform and import it. Raises Problem."""
    build = BUILDERS.get(source)
    if build is None:
        errors = [{"path": "source", "message": f"must be one of {', '.join(sorted(BUILDERS))}"}]
        raise Problem("invalid", 400, f"There is no suite source {source!r}.", errors)
    try:
        described, tasks = build()
    except SuiteError as error:
        raise suite_problem(error) from error
    return import_suite(project=project, definition=described, tasks=tasks, by=by, source=source)


def suite_problem(error: SuiteError) -> Problem:
    """The refusal of a suite as an answer: every line and field that is wrong."""
    errors = [{"path": _path(problem.line, problem.field), "message": problem.message} for problem in error.errors]
    return Problem("suite_refused", 422, "The suite was not imported: correct what is listed.", errors)


def _path(line: int, field: str) -> str:
    where = f"line {line}" if line else "header"
    return f"{where}: {field}" if field else where
