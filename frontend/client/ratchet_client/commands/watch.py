"""watch: a run as it goes, in a terminal, in a log file, or as JSON lines."""

from collections.abc import Callable

import click
from rich.live import Live

from ratchet_client.commands.live_view import LiveView
from ratchet_client.commands.output import ExitCode, mark, when
from ratchet_client.commands.session import Session, in_project
from ratchet_client.commands.waiting import Patience
from ratchet_client.feed import Update

Ask = Callable[[], Update | None]


@click.command()
@click.argument("run")
@click.option("--timeout", type=click.FloatRange(min=0), default=0, metavar="SECONDS", help="Then it ends with 2.")
@in_project
def watch(session: Session, run: str, timeout: float) -> int:
    """Watch a run until it is over.

    RUN is a number, an id, or `last`. Ctrl-C stops only the watching.

    Ends with 0 when it succeeded, 1 when it failed, was halted or cancelled. It goes on through restarts of the server.
    With --json: a line for each change of state, point and event, each once.
    """
    return watch_run(session, session.find_run(run), timeout)


def watch_run(session: Session, run_id: str, limit_seconds: float = 0) -> int:
    """Follow the run to its end and say how it ended."""
    patience = Patience(limit_seconds)
    first = patience.ask(lambda: session.impatient.runs.get(run_id))
    while first is None:
        patience.pause()
        first = patience.ask(lambda: session.impatient.runs.get(run_id))
    feed = session.impatient.runs.feed(run_id)
    view = LiveView(f"run {first['number']}" + (f" · {first['name']}" if first["name"] else ""))
    show = _in_terminal if session.output.is_terminal and not session.output.as_json else _in_lines
    update = show(session, view, lambda: patience.ask(feed.poll), patience)
    return _conclude(session, run_id, update)


def _in_terminal(session: Session, view: LiveView, ask: Ask, patience: Patience) -> Update:
    with Live(view, console=session.output.console, refresh_per_second=4, transient=True) as live:
        while True:
            update = ask()
            view.take(update, patience.away)
            live.refresh()
            if update is not None and update.is_final:
                return update
            patience.pause()


def _in_lines(session: Session, view: LiveView, ask: Ask, patience: Patience) -> Update:
    output, last, state = session.output, "", None
    while True:
        update = ask()
        view.take(update, patience.away)
        line = view.summary()
        if update is not None and output.as_json:
            if update.live["strip"] != state:
                state = update.live["strip"]
                output.json_line({"type": "state", **state})
            for series in update.series or []:
                output.json_line({**series, "type": "series"})
            for point in update.points:
                output.json_line({"type": "point", **vars(point)})
            for event in update.events:
                output.json_line({"type": "event", **event})
        elif update is not None:
            for event in update.events:
                output.say(f"{when(event['at'])} {event['level']:<7} {event['message']}")
        if line != last:
            last = line
            (output.note if output.as_json else output.say)(line)
        if update is not None and update.is_final:
            return update
        patience.pause()


def _conclude(session: Session, run_id: str, update: Update) -> int:
    """The last word: state, reason, result and where to go on."""
    run = session.client.runs.get(run_id)
    reward = update.live["strip"]["reward"]
    fields = {
        "run": run["number"],
        "state": mark(run["state"]),
        "why": run["status_message"],
        "steps": f"{run['step']} of {run['total_steps']}",
        "reward": f"{reward['mean']:.3f} at version {reward['version']} (n={reward['n']})" if reward else None,
        "result": run["result"],
        "page": session.client.page(f"runs/{run_id}/"),
    }
    if session.output.as_json:
        session.output.json_line({"type": "end", **run})
    else:
        session.output.record(run, fields)
    return ExitCode.PASS if run["state"] == "succeeded" else ExitCode.FAIL
