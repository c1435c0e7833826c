"""runs: list, show, ledger, metrics, pause, resume, cancel, retry; and logs."""

from functools import partial

import click

from ratchet_client.commands.output import Column, ExitCode, day, mark, seconds, when
from ratchet_client.commands.session import Session, in_project
from ratchet_client.commands.waiting import Patience
from ratchet_client.feed import FINAL_STATES
from ratchet_client.resources.runs import Runs
from ratchet_client.types import Run, RunDetail, RunEvent

_LEVELS = ("info", "warning", "error")


@click.group()
def runs() -> None:
    """Training runs.

    RUN is a number, an id, or `last`.
    """


@runs.command("list")
@click.option("--state", "states", multiple=True, help="running, succeeded …; may be repeated.")
@click.option("--suite", default="", help="By slug.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@in_project
def list_runs(session: Session, states: tuple[str, ...], suite: str, limit: int) -> None:
    """Runs, newest first."""
    rows = session.client.runs.list(project=session.project_filter, state=list(states), suite=suite)
    columns: list[Column] = [
        ("run", lambda run: run["number"]),
        ("name", lambda run: run["name"]),
        ("state", lambda run: mark(run["state"])),
        ("step", lambda run: f"{run['step']}/{run['total_steps']}"),
        ("suite", lambda run: run["suite"]),
        ("from", lambda run: run["policy"]),
        ("result", lambda run: run["result"]),
        ("submitted, UTC", lambda run: day(run["created_at"])),
    ]
    if not session.project_filter:
        columns.append(("project", lambda run: run["project"]))
    session.output.table((run for run, _ in zip(rows, range(limit), strict=False)), columns)


@runs.command("show")
@click.argument("run")
@in_project
def show_run(session: Session, run: str) -> None:
    """A run with its state and why."""
    _print_run(session, session.client.runs.get(session.find_run(run)))


@runs.command("ledger")
@click.argument("run")
@in_project
def show_ledger(session: Session, run: str) -> None:
    """Where every admitted group went; it adds up."""
    ledger = session.client.runs.ledger(session.find_run(run))
    fields: dict[str, object] = {"admitted": ledger["admitted"]}
    fields |= {f"open, {name}": count for name, count in ledger["open"].items()}
    fields |= {f"closed, {name.replace('_', ' ')}": count for name, count in ledger["closed"].items()}
    session.output.record(ledger, fields | {"adds up": ledger["adds_up"], "refused reports": ledger["refused_reports"]})


@runs.command("metrics")
@click.argument("run")
@click.argument("names", nargs=-1)
@click.option("--every", is_flag=True, help="All points; else long series keep the extremes of each bucket of steps.")
@in_project
def show_metrics(session: Session, run: str, names: tuple[str, ...], every: bool) -> None:
    """The newest value of every series, or of those named; whole series with --json."""
    found = session.client.runs.metrics(session.find_run(run), names, every=every)
    if missing := sorted(set(names) - {series["name"] for series in found}):
        session.output.note(f"The run has no points of {', '.join(missing)}.")
    session.output.table(
        found,
        [
            ("metric", lambda series: series["name"]),
            ("newest", lambda series: series["values"][-1] if series["values"] else None),
            ("unit", lambda series: series["unit"]),
            ("step", lambda series: series["steps"][-1] if series["steps"] else None),
            ("points", lambda series: series["num_points"]),
            ("source", lambda series: "measured" if series["measured"] else "reported"),
        ],
    )


@runs.command("pause")
@click.argument("run")
@in_project
def pause_run(session: Session, run: str) -> None:
    """Stop admitting groups."""
    _print_run(session, session.client.runs.pause(session.find_run(run)))


@runs.command("resume")
@click.argument("run")
@in_project
def resume_run(session: Session, run: str) -> None:
    """Go on with a paused run."""
    _print_run(session, session.client.runs.resume(session.find_run(run)))


@runs.command("cancel")
@click.argument("run")
@click.option("--reason", default="")
@in_project
def cancel_run(session: Session, run: str, reason: str) -> None:
    """End a run; published checkpoints stay."""
    _print_run(session, session.client.runs.cancel(session.find_run(run), reason))


@runs.command("retry")
@click.argument("run")
@in_project
def retry_run(session: Session, run: str) -> None:
    """A new run of the same spec, linked to the old one."""
    _print_run(session, session.client.runs.retry(session.find_run(run)))


@click.command()
@click.argument("run")
@click.option("--follow", "-f", is_flag=True, help="Wait for more until the run is over.")
@click.option("--level", type=click.Choice(_LEVELS), default="info", show_default=True, help="This and worse.")
@in_project
def logs(session: Session, run: str, follow: bool, level: str) -> int:
    """What happened in a run, oldest first.

    With --json: JSON lines.
    """
    run_id = session.find_run(run)
    patience, last = Patience(), 0
    shown = _LEVELS[_LEVELS.index(level) :]
    runs_of = (session.impatient if follow else session.client).runs
    while True:
        # The state first: what a finished run wrote is all there when its events are read.
        over = not follow or patience.ask(lambda: runs_of.get(run_id)["state"] in FINAL_STATES)
        news = patience.ask(partial(_events_after, runs_of, run_id, last)) if follow else runs_of.events(run_id)
        for event in news or []:
            last = event["id"]
            if event["level"] in shown:
                _print_event(session, event)
        if over and news is not None:
            return ExitCode.PASS
        patience.pause()


def _events_after(runs_of: Runs, run_id: str, last: int) -> list[RunEvent]:
    return list(runs_of.events(run_id, last))


def _print_event(session: Session, event: RunEvent) -> None:
    if session.output.as_json:
        session.output.json_line(event)
    else:
        session.output.say(f"{when(event['at'])}  {event['level']:<7}  {event['code']}  {event['message']}")


def _print_run(session: Session, run: Run | RunDetail) -> None:
    fields: dict[str, object] = {
        "run": run["number"],
        "id": run["id"],
        "name": run["name"],
        "state": mark(run["state"]),
        "why": run["status_message"],
        "step": f"{run['step']} of {run['total_steps']}",
        "suite": run["suite"],
        "from": run["policy"],
        "result": run["result"],
        "trainer CPU": seconds(run["train_cpu_seconds"]),
        "submitted": f"{when(run['created_at'])} by {run['created_by']}",
        "started": when(run["started_at"]),
        "ended": when(run["finished_at"]),
        "retry of": run["retry_of"],
        "page": session.client.page(f"runs/{run['id']}/"),
    }
    session.output.record(run, fields)
