"""Where suites come from by name, by folder or by declaration: what the import command and the API call."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from django.conf import settings

from apps.accounts.models import Project, User
from apps.tasks.models import Suite
from apps.tasks.services import import_suite
from apps.tasks.suites import archive, bfcl, declaration, definition, harbor, hosted, human_eval, reasoning_gym, toolbox
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


def import_harbor(
    *, project: Project, declared: declaration.Declaration, files: Mapping[str, bytes], by: User | None
) -> Suite:
    """Import Harbor task folders. What was changed or left out stays with the suite as notes. Raises Problem."""
    try:
        (described, tasks), notes = harbor.build(declared, files)
    except SuiteError as error:
        raise suite_problem(error) from error
    return import_suite(
        project=project, definition=described, tasks=tasks, by=by, source="harbor", notes=[asdict(n) for n in notes]
    )


def import_path(*, project: Project, source: str, path: Path, declared: Path | None, by: User | None) -> Suite:
    """Import `harbor` (folder or archive, and a declaration) or `environment` (a declaration). Raises Problem."""
    try:
        if source == "harbor":
            if declared is None:
                raise SuiteError.single(
                    "--declare", "is needed: what the tasks are a sample of stands in no task folder"
                )
            described = declaration.read_toml(declared, declaration.Declaration)
            files = archive.read_folder(path) if path.is_dir() else _read_archive(path)
            return import_harbor(project=project, declared=described, files=files, by=by)
        wanted = declaration.read_toml(path, hosted.HostedDeclaration)
        defined, tasks = hosted.build(wanted)
    except SuiteError as error:
        raise suite_problem(error) from error
    kind = wanted.environment.kind
    return import_suite(project=project, definition=defined, tasks=tasks, by=by, source=kind)


def _read_archive(path: Path) -> dict[str, bytes]:
    try:
        with path.open("rb") as stream:
            return archive.read_archive(stream, path.name)
    except OSError as error:
        raise SuiteError.single(str(path), f"cannot be read: {error.strerror}") from error


def suite_problem(error: SuiteError) -> Problem:
    """The refusal of a suite as an answer: every line and field that is wrong."""
    errors = [{"path": _path(problem.line, problem.field), "message": problem.message} for problem in error.errors]
    return Problem("suite_refused", 422, "The suite was not imported: correct what is listed.", errors)


def _path(line: int, field: str) -> str:
    where = f"line {line}" if line else "header"
    return f"{where}: {field}" if field else where
