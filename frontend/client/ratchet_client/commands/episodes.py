"""episodes: list, show, export."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ratchet_client.commands.output import Output, mark, seconds
from ratchet_client.commands.session import Session, in_project, json_option, pass_session, project_option
from ratchet_client.errors import RatchetError


@click.group()
def episodes() -> None:
    """Conversations with their verdicts."""


@episodes.command("list")
@click.argument("run")
@click.option("--verdict", default="", help="pass, fail or error.")
@click.option("--reason", default="", help="A reason code, e.g. WRONG_ANSWER.")
@click.option("--tampered", is_flag=True, help="Only those with a tamper flag.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@in_project
def list_episodes(session: Session, run: str, verdict: str, reason: str, tampered: bool, limit: int) -> None:
    """Episodes of a run, newest first."""
    filters = {"verdict": verdict, "reason_code": reason, "tamper": "true" if tampered else ""}
    rows = session.client.episodes.list(run=session.find_run(run), page_size=min(limit, 200), **filters)
    session.output.table(
        (row for row, _ in zip(rows, range(limit), strict=False)),
        [
            ("episode", lambda episode: episode["id"]),
            ("verdict", lambda episode: mark(episode["verdict"])),
            ("reward", lambda episode: episode["reward"]),
            ("reason", lambda episode: episode["reason_code"]),
            ("turns", lambda episode: episode["num_turns"]),
            ("calls", lambda episode: episode["num_tool_calls"]),
            ("tokens", lambda episode: episode["num_sampled_tokens"]),
            ("took", lambda episode: seconds(episode["total_seconds"])),
            ("answer", lambda episode: episode["answer"][:60]),
        ],
    )


@episodes.command("show")
@click.argument("episode", metavar="ID")
@click.option("--tokens", is_flag=True, help="With token ids, mask, log-probabilities and versions (JSON).")
@json_option
@pass_session
def show_episode(session: Session, episode: str, tokens: bool) -> None:
    """An episode as a conversation: turns, tool calls, verdict and why."""
    found: Any = session.client.episodes.get(episode, tokens=tokens)
    output = session.output
    if output.as_json or tokens:
        output.json(found)
        return
    fields = {
        "task": found["group"]["task_key"],
        "verdict": mark(found["verdict"]),
        "reward": found["reward"],
        "reason": found["reason_code"],
        "why": found["message"],
        "versions": f"{found['min_version']} to {found['max_version']}",
        "took": seconds(found["total_seconds"]),
        "page": session.client.page(f"episodes/{found['id']}/"),
    }
    output.record(found, fields)
    for turn in (found["transcript"] or {}).get("turns", []):
        _print_turn(output, turn)


@episodes.command("export")
@click.argument("run")
@click.option("--transcripts", is_flag=True, help="With turns and sandbox logs.")
@click.option("--output", "-o", "target", type=click.Path(dir_okay=False, path_type=Path), help="Else standard output.")
@project_option
@pass_session
def export_episodes(session: Session, run: str, transcripts: bool, target: Path | None) -> None:
    """All episodes of a run as JSON lines. A file appears only when it is whole."""
    with session.client.runs.export_episodes(session.find_run(run), transcripts=transcripts) as lines:
        if target is None:
            for line in _for_terminal(lines) if session.output.is_terminal else lines:
                session.output.raw(line)
            sys.stdout.flush()
            return
        part = target.with_name(f".{target.name}.part")
        count = 0
        try:
            with part.open("w", encoding="utf-8") as file:
                for count, line in enumerate(lines, 1):  # noqa: B007  # how many there were
                    file.write(line + "\n")
            part.replace(target)
        except OSError as error:
            raise RatchetError(f"{target} cannot be written: {error.strerror}.") from error
        finally:
            part.unlink(missing_ok=True)
    session.output.note(f"{count} episodes in {target}")


def _for_terminal(lines: Iterator[str]) -> Iterator[str]:
    """In ASCII: what stands in an episode must not steer the terminal."""
    return (json.dumps(json.loads(line)) for line in lines)


def _print_turn(output: Output, turn: dict[str, Any]) -> None:
    call = turn.get("tool_call")
    output.say()
    if call:
        took = seconds(call.get("duration_seconds"))
        output.say(f"── tool {call.get('name')}({json.dumps(call.get('arguments'))})  {took}")
        output.block(str(call.get("error") or call.get("result") or ""))
    else:
        output.say(f"── {turn.get('role')}")
        output.block(str(turn.get("text", "")))
