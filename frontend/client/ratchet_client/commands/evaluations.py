"""evaluations: what was measured, again and beside each other."""

import click

from ratchet_client.commands.compare import print_results
from ratchet_client.commands.output import day, mark, when
from ratchet_client.commands.session import Session, in_project
from ratchet_client.types import Evaluation


@click.group()
def evaluations() -> None:
    """Policies measured on a suite.

    EVALUATION is an id, or `last`.
    """


@evaluations.command("list")
@click.option("--suite", default="", metavar="SLUG")
@click.option("--state", default="")
@in_project
def list_evaluations(session: Session, suite: str, state: str) -> None:
    """Evaluations, newest first."""
    session.output.table(
        session.client.evaluations.list(project=session.project_filter, suite=suite, state=state),
        [
            ("id", lambda found: found["id"]),
            ("purpose", lambda found: found["purpose"]),
            ("suite", lambda found: f"{found['suite']} {found['split']}"),
            ("arms", lambda found: ", ".join(arm["label"] for arm in found["arms"])),
            ("state", lambda found: mark(found["state"])),
            ("done", lambda found: f"{found['progress']['done']}/{found['progress']['total']}"),
            ("started, UTC", lambda found: day(found["created_at"])),
        ],
    )


@evaluations.command("show")
@click.argument("evaluation")
@click.option("--base", default="", metavar="LABEL", help="Compare with this arm instead of the first.")
@in_project
def show_evaluation(session: Session, evaluation: str, base: str) -> None:
    """What was measured so far, and each arm against the first."""
    client, found = session.client.evaluations, session.client.evaluations.get(session.find_evaluation(evaluation))
    comparison = None if found["purpose"] == "gate" else client.comparison(found["id"], base)
    if not session.output.as_json:
        session.output.note(f"{found['state']}: {found['status_message']}")
    print_results(session, found, client.results(found["id"]), comparison)


@evaluations.command("retry")
@click.argument("evaluation")
@in_project
def retry_evaluation(session: Session, evaluation: str) -> None:
    """The same plan again; while that is under way, another retry answers with it."""
    _show(session, session.client.evaluations.retry(session.find_evaluation(evaluation)))


@evaluations.command("cancel")
@click.argument("evaluation")
@in_project
def cancel_evaluation(session: Session, evaluation: str) -> None:
    """Stop it; what was scored stays."""
    _show(session, session.client.evaluations.cancel(session.find_evaluation(evaluation)))


def _show(session: Session, found: Evaluation) -> None:
    fields = {
        "evaluation": found["id"],
        "state": mark(found["state"]),
        "why": found["status_message"],
        "suite": f"{found['suite']} {found['split']}",
        "arms": ", ".join(arm["label"] for arm in found["arms"]),
        "started": when(found["created_at"]),
        "page": session.client.page(f"evaluations/{found['id']}/"),
    }
    session.output.record(found, fields)
