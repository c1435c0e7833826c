"""Command line: tries a verifier on examples, or prints the settings of every kind."""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec

from gpu_workers.contracts.seams import SandboxBackend, WorkerError
from gpu_workers.sandboxes.bubblewrap import BubblewrapBackend
from gpu_workers.sandboxes.local import LocalBackend
from gpu_workers.verifiers.checking import CheckError, Outcome, check_examples, read_examples
from gpu_workers.verifiers.judge import JudgeEndpoint
from gpu_workers.verifiers.registry import KINDS
from gpu_workers.verifiers.results import TaskError

MAX_SHOWN = 300


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `python -m gpu_workers.verifiers`: 0 when all is as expected, 1 when not, 2 on a bad file."""
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.verifiers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="judge the reference and the cases of a file of examples")
    check.add_argument("file", type=Path)
    check.add_argument("--repeats", type=int, default=3, help="verdicts of a case that must agree")
    check.add_argument("--no-sandbox", action="store_true", help="run programs unprotected: only your own code")
    commands.add_parser("kinds", help="JSON schema of every kind's settings")
    options = parser.parse_args(arguments)
    if options.command == "kinds":
        sys.stdout.write(json.dumps({str(k): msgspec.json.schema(kind.config) for k, kind in KINDS.items()}, indent=2))
        sys.stdout.write("\n")
        return 0
    backend: SandboxBackend = LocalBackend() if options.no_sandbox else BubblewrapBackend()
    url, key = os.environ.get("RATCHET_JUDGE_URL", ""), os.environ.get("RATCHET_JUDGE_KEY", "")
    try:
        examples = read_examples(options.file)
        judge = JudgeEndpoint(url, key) if url else None
        outcomes = asyncio.run(check_examples(examples, backend, options.repeats, judge))
    except (CheckError, TaskError, WorkerError) as error:
        sys.stderr.write(f"cannot be checked: {error}\n")
        return 2
    for outcome in outcomes:
        sys.stdout.write(describe(outcome))
    return int(any(outcome.problem for outcome in outcomes))


def describe(outcome: Outcome) -> str:
    """One line of a case, and a second one of what is wrong."""
    last = outcome.results[-1]
    score = "no score" if last.score is None else f"{last.score:g}"
    mark = "WRONG" if outcome.problem else "ok"
    text = " ".join(last.message.split())[:MAX_SHOWN]
    line = (
        f"{mark:5} {outcome.name}: {last.verdict} {score} {last.reason_code} ({last.duration_seconds:.2f} s) {text}\n"
    )
    return line + (f"      {outcome.problem}\n" if outcome.problem else "")


if __name__ == "__main__":
    sys.exit(main())
