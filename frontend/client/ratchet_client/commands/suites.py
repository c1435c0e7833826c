"""suites: list, show, tasks, import."""

from pathlib import Path

import click

from ratchet_client.commands.output import ExitCode, day, mark
from ratchet_client.commands.session import Session, in_project, key_option
from ratchet_client.commands.waiting import wait_for
from ratchet_client.errors import RatchetError
from ratchet_client.spec_files import read_spec
from ratchet_client.types import CheckProgress, Suite, SuiteDetail

_FILE = click.Path(dir_okay=False, exists=True, path_type=Path)


@click.group()
def suites() -> None:
    """Versioned sets of tasks."""


@suites.command("list")
@click.option("--slug", default="", help="Only the versions of this suite.")
@in_project
def list_suites(session: Session, slug: str) -> None:
    """Suites, newest first."""
    session.output.table(
        session.client.suites.list(project=session.project_filter, slug=slug),
        [
            ("suite", lambda suite: f"{suite['slug']}@{suite['version']}"),
            ("state", lambda suite: mark(suite["state"])),
            ("tasks", lambda suite: suite["num_tasks"]),
            ("ready", lambda suite: suite["num_ready"]),
            ("quarantined", lambda suite: suite["num_quarantined"]),
            ("project", lambda suite: suite["project"]),
            ("imported, UTC", lambda suite: day(suite["created_at"])),
        ],
    )


@suites.command("show")
@click.argument("suite")
@in_project
def show_suite(session: Session, suite: str) -> None:
    """A suite by slug, slug@version or id, with its splits."""
    found = session.client.suites.get(session.find_suite(suite))
    session.output.record(found, _fields(session, found))
    if not session.output.as_json:
        session.output.table(
            found["representativeness"]["splits"],
            [
                ("split", lambda split: split["split"]),
                ("tasks", lambda split: split["total"]),
                ("ready", lambda split: split["ready"]),
                ("quarantined", lambda split: split["quarantined"]),
                ("unchecked", lambda split: split["unchecked"]),
            ],
        )


@suites.command("tasks")
@click.argument("suite")
@click.option("--split", default="")
@click.option("--state", default="", help="ready, quarantined …")
@click.option("--tag", default="")
@in_project
def list_tasks(session: Session, suite: str, split: str, state: str, tag: str) -> None:
    """Tasks in the order of import. Reading held-out ones needs heldout:read and is audited."""
    session.output.table(
        session.client.suites.tasks(session.find_suite(suite), split=split, state=state, tag=tag, page_size=200),
        [
            ("task", lambda task: task["key"]),
            ("split", lambda task: task["split"]),
            ("state", lambda task: mark(task["state"])),
            ("reason", lambda task: task["quarantine_code"]),
            ("prompt", lambda task: "hidden" if task["content_hidden"] else (task["prompt_preview"] or "")[:60]),
        ],
    )


@suites.command("import")
@click.argument("header", required=False, type=_FILE)
@click.argument("tasks", required=False, type=_FILE)
@click.option("--archive", type=_FILE, help="Zip or tar of Harbor task folders, instead of TASKS.")
@click.option("--tool-file", "tool_files", type=_FILE, multiple=True, help="Python file named by a tool; repeatable.")
@click.option("--source", default="", help="A suite that comes with the platform, e.g. bfcl, instead of files.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the tasks are checked.")
@key_option
@in_project
def import_suite(
    session: Session,
    header: Path | None,
    tasks: Path | None,
    archive: Path | None,
    tool_files: tuple[Path, ...],
    source: str,
    no_wait: bool,
    key: str,
) -> int:
    """Import a suite from HEADER (YAML or JSON) and TASKS (JSON lines); 0 when it is ready, 1 when it failed."""
    suite: Suite | SuiteDetail
    if source:
        suite = session.client.suites.import_source(source, project=session.project, key=key)
    elif header is None or (tasks is None) == (archive is None):
        raise RatchetError(
            "A suite comes from a header with a file of tasks or an archive, or from a source.",
            hint="ratchet suites import header.yaml tasks.jsonl",
        )
    else:
        declared = read_spec(str(header)).value
        suite = session.client.suites.upload(
            declared, project=session.project, tasks=tasks, archive=archive, tool_files=tool_files, key=key
        )
    if not no_wait and suite["state"] == "checking":
        suite_id = suite["id"]
        wait_for(
            session.output,
            lambda: session.impatient.suites.progress(suite_id),
            is_over=lambda progress: progress["state"] != "checking",
            progress=_progress,
        )
        suite = session.client.suites.get(suite_id)
    session.output.record(suite, _fields(session, suite))
    return ExitCode.FAIL if suite["state"] == "failed" else ExitCode.PASS


def _progress(progress: CheckProgress) -> tuple[str, int, int]:
    return f"checking tasks, {progress['quarantined']} quarantined", progress["done"], progress["total"]


def _fields(session: Session, suite: Suite | SuiteDetail) -> dict[str, object]:
    fields: dict[str, object] = {
        "suite": f"{suite['slug']}@{suite['version']}",
        "state": mark(suite["state"]),
        "why": suite["status_message"] or None,
        "tasks": suite["num_tasks"],
        "ready": suite["num_ready"],
        "quarantined": suite["num_quarantined"],
        "verifier": suite["verifier"]["kind"],
        "page": session.client.page(f"suites/{suite['id']}/"),
    }
    for number, note in enumerate(suite["import_notes"], 1):
        fields[f"note {number}"] = f"{note['path']}: {note['message']}"
    return {name: value for name, value in fields.items() if value is not None}
