"""submit: a run from a spec file."""

import sys
from dataclasses import replace

import click

from ratchet_client.commands.output import ExitCode
from ratchet_client.commands.session import Session, in_project, key_option
from ratchet_client.commands.spec_view import spec_fields
from ratchet_client.commands.watch import watch_run
from ratchet_client.errors import ApiError, SpecError
from ratchet_client.spec_files import read_spec, set_field


@click.command()
@click.argument("spec", metavar="FILE|-")
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a field, e.g. steps=3; repeatable.")
@click.option("--watch", "then_watch", is_flag=True, help="Stay until it is over; ends as `ratchet watch` does.")
@click.option("--dry-run", is_flag=True, help="Say what would run, or every wrong field; nothing is stored.")
@key_option
@in_project
def submit(session: Session, spec: str, changes: tuple[str, ...], then_watch: bool, dry_run: bool, key: str) -> int:
    """Submit a run from a spec file.

    FILE is YAML or JSON; `-` reads standard input. A refusal names each wrong field with its line.
    """
    file = read_spec("standard input", sys.stdin.read()) if spec == "-" else read_spec(spec)
    body, prefix = file.value, ""
    if isinstance(body, dict) and isinstance(body.get("spec"), dict):  # as the API takes it
        session.wanted_project = session.wanted_project or str(body.get("project", ""))
        body, prefix = body["spec"], "spec."
    if not isinstance(body, dict):
        raise SpecError(f"{file.name} must hold an object with suite, policy and so on.")
    for change in changes:
        set_field(body, change)
    try:
        if dry_run:
            wanted = session.client.runs.validate(body, project=session.project)
            session.output.record(wanted, spec_fields(wanted))
            return ExitCode.PASS
        run = session.client.runs.submit(body, project=session.project, key=key)
    except ApiError as error:
        changed = {change.partition("=")[0] for change in changes}
        error.fields = [
            replace(field, where="--set" if field.path in changed else file.where(prefix + field.path))
            for field in error.fields
        ]
        raise
    if then_watch:
        session.output.note(f"run {run['number']}: {session.client.page('runs/' + run['id'] + '/')}")
        return watch_run(session, run["id"])
    fields = {"run": run["number"], "id": run["id"], "state": run["state"], "suite": run["suite"]}
    session.output.record(run, fields | {"page": session.client.page(f"runs/{run['id']}/")})
    return ExitCode.PASS
