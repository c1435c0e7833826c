"""compare: runs beside each other, or policies on the same tasks."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import click

from ratchet_client.commands.output import Column, ExitCode, mark, percent, seconds
from ratchet_client.commands.session import Session, in_project, key_option
from ratchet_client.commands.waiting import wait_for
from ratchet_client.errors import RatchetError
from ratchet_client.types import ComparedArm, Comparison, Evaluation, Results


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="A B …")
@click.option("--suite", default="", metavar="SLUG", help="A and B are policies: run them on this suite, interleaved.")
@click.option("--split", default="dev", show_default=True)
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Attempts a task.")
@click.option("--max-tasks", type=click.IntRange(min=0), default=0, help="0: all.")
@key_option
@in_project
def compare(
    session: Session, names: tuple[str, ...], suite: str, split: str, samples: int, max_tasks: int, key: str
) -> int:
    """Runs beside each other, or policies on a suite.

    Runs: `compare 3 5`. Policies, measured afresh: `compare plain run-1-v3 --suite people`.

    Runs: state, result, newest metrics, and only those fields of their specs that differ.
    Policies: success of each and their difference by task, with 95 % intervals; whether one is
    better is for a gate to say.
    """
    if not suite:
        if len(names) < 2:
            raise RatchetError("A comparison needs two runs.", hint="ratchet compare 3 5; policies need --suite")
        return _compare_runs(session, [session.find_run(name) for name in names])
    evaluation = session.client.evaluations.start(
        names, project=session.project, suite=suite, split=split, samples=samples, max_tasks=max_tasks, key=key
    )
    ended = wait_for(
        session.output,
        lambda: session.impatient.evaluations.get(evaluation["id"]),
        is_over=lambda found: found["state"] in ("finished", "failed", "cancelled"),
        progress=_progress,
    )
    if ended["state"] != "finished":
        raise RatchetError(f"The evaluation was {ended['state']}: {ended['status_message']}")
    client = session.client.evaluations
    print_results(session, ended, client.results(ended["id"]), client.comparison(ended["id"]))
    return ExitCode.PASS


def _progress(evaluation: Evaluation) -> tuple[str, int, int]:
    words = evaluation["status_message"] or evaluation["state"]
    return words, evaluation["progress"]["done"], evaluation["progress"]["total"]


def print_results(session: Session, evaluation: Evaluation, results: Results, comparison: Comparison | None) -> None:
    """The arms' numbers, and what each differs by; `comparison` None: its gate says that."""
    output = session.output
    if output.as_json:
        output.json({"evaluation": evaluation, "results": results, "comparison": comparison})
        return
    output.table(
        results["arms"],
        [
            ("policy", lambda arm: arm["label"]),
            ("success", lambda arm: percent(arm["success"])),
            ("95 %", lambda arm: None if arm["low"] is None else f"{percent(arm['low'])} to {percent(arm['high'])}"),
            ("n", lambda arm: arm["n"]),
            ("missing", lambda arm: arm["num_missing"]),
            ("p50", lambda arm: seconds(arm["latency_seconds"]["p50"])),
            ("tokens", lambda arm: arm["mean_sampled_tokens"]),
        ],
    )
    if comparison:
        for arm in comparison["arms"]:
            output.say(_words(arm, comparison["base"]))
    output.say(session.client.page(f"evaluations/{evaluation['id']}/"))


def _words(arm: ComparedArm, base: str) -> str:
    if arm["difference"] is None:
        return f"{arm['label']} against {base}: no task has a verdict in both"
    between = "" if arm["low"] is None else f" (95 %: {_points(arm['low'])} to {_points(arm['high'])})"
    counts = f"better on {arm['num_better']}, worse on {arm['num_worse']} of {arm['num_tasks']} tasks"
    doubt = "" if arm["trusted"] else "; too few clusters to trust the interval"
    return f"{arm['label']} against {base}: {_points(arm['difference'])} points{between}, {counts}{doubt}"


def _points(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f}"


def _compare_runs(session: Session, ids: list[str]) -> int:
    found = [session.client.runs.get(run_id) for run_id in ids]
    metrics = [{series["name"]: series for series in session.client.runs.metrics(run_id)} for run_id in ids]
    titles = [f"run {run['number']}" for run in found]
    rows: list[tuple[str, list[object]]] = [
        ("name", [run["name"] for run in found]),
        ("state", [mark(run["state"]) for run in found]),
        ("suite", [run["suite"] for run in found]),
        ("step", [f"{run['step']} of {run['total_steps']}" for run in found]),
        ("result", [run["result"] for run in found]),
        ("trainer CPU", [seconds(run["train_cpu_seconds"]) for run in found]),
    ]
    specs = [dict(_flat(run["spec"])) for run in found]
    differing = sorted(name for name in set().union(*specs) if len({repr(spec.get(name)) for spec in specs}) > 1)
    rows += [(f"spec {name}", [spec.get(name) for spec in specs]) for name in differing if name != "name"]
    rows += [(name, [_newest(series.get(name)) for series in metrics]) for name in sorted(set().union(*metrics))]
    if session.output.as_json:
        session.output.json(
            {
                "runs": found,
                "differences": {name: [spec.get(name) for spec in specs] for name in differing},
                "newest": {name: [_newest(series.get(name)) for series in metrics] for name in set().union(*metrics)},
            }
        )
    else:
        columns: list[Column] = [("", itemgetter(0))]
        columns += [(title, itemgetter(at)) for at, title in enumerate(titles, 1)]
        session.output.table([(name, *values) for name, values in rows], columns)
    return ExitCode.PASS


def _flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(path, value)]
    return [pair for name, inner in value.items() for pair in _flat(inner, f"{path}.{name}" if path else name)]


def _newest(series: Any) -> float | None:
    return series["values"][-1] if series and series["values"] else None
