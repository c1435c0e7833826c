"""The record of one tool call: what the policy is told, what became of it, bounded extracts of what it wrote."""

import json
from typing import Any

from gpu_workers.contracts.enums import ToolOutcome
from gpu_workers.contracts.groups import ToolCallRecord
from gpu_workers.contracts.seams import ExecResult
from gpu_workers.contracts.text import storable

MAX_ERROR = 500
MAX_STREAM = 4000  # characters kept of stdout, of stderr
MAX_ARGUMENTS = 64 * 2**10  # bytes as JSON; a policy's call is shorter, its text is bounded before
MAX_KEPT_TEXT = 1000


def refused(name: str, arguments: Any, problem: str, *, invalid: bool = True) -> ToolCallRecord:
    """A call that was not executed; not `invalid` where it fits the schema and only its value is impossible."""
    return ToolCallRecord(
        name=storable(name[:200]),
        arguments=bounded_arguments(arguments),
        result=storable(f"Error: {problem}"),
        ok=False,
        invalid=invalid,
        error=storable(problem)[:MAX_ERROR],
        outcome=ToolOutcome.REFUSED,
    )


def cut_short(name: str, arguments: Any, seconds: float) -> ToolCallRecord:
    """A call that ran when the episode's time for tools was over: its sandbox is gone, nothing of it is known."""
    return ToolCallRecord(
        name=name,
        arguments=bounded_arguments(arguments),
        ok=False,
        error=f"the episode's time for tools was over after {seconds:.1f} s of this call",
        duration_seconds=seconds,
        outcome=ToolOutcome.TIMED_OUT,
    )


def ended_by_call(name: str, arguments: Any, why: str) -> ToolCallRecord:
    """A call that ends its sandbox each time it is made: the policy's doing, told to it like any other failure."""
    problem = f"the call ended the sandbox, twice: {why}. No further call can be made"
    return ToolCallRecord(
        name=name,
        arguments=bounded_arguments(arguments),
        result=f"Error: {problem}",
        ok=False,
        error=storable(problem)[:MAX_ERROR],
        outcome=ToolOutcome.ENDED_SANDBOX,
    )


def finished(name: str, done: ExecResult, text: str, *, problem: str = "", keep_text: bool = False) -> ToolCallRecord:
    """A call that was executed. `problem`: as the tool itself names it; with `keep_text` it goes behind the text."""
    outcome = _outcome(done)
    problem = _problem(done, outcome) or problem
    result = text
    if problem:
        result = f"{text}\n[{problem}]" if text and keep_text and outcome is ToolOutcome.RAN else f"Error: {problem}"
    elif done.truncated:
        result = f"{text}\n[output cut: it is longer than the limit]"
    return ToolCallRecord(
        name=name,
        result=storable(result),
        ok=not problem,
        error=storable(problem)[:MAX_ERROR],
        duration_seconds=done.duration_seconds,
        truncated=done.truncated,
        outcome=outcome,
        exit_code=done.exit_code,
        limit_hit=done.limit_hit,
        stdout=storable(done.stdout[:MAX_STREAM]) if keep_text else "",  # else it is the result
        stderr=storable(done.stderr[-MAX_STREAM:]),
    )


def bounded_arguments(arguments: Any) -> dict[str, Any]:
    """Arguments as they are where that is short enough, else with long texts cut; always JSON."""
    if not isinstance(arguments, dict):
        return {}
    arguments = storable(arguments)
    try:
        if len(json.dumps(arguments, allow_nan=False)) <= MAX_ARGUMENTS:
            return arguments
    except (TypeError, ValueError, RecursionError):
        pass
    return {str(name)[:200]: _cut(repr(value)) for name, value in list(arguments.items())[:50]}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_KEPT_TEXT else f"{text[:MAX_KEPT_TEXT]}… ({len(text)} characters)"


def _outcome(done: ExecResult) -> ToolOutcome:
    if done.timed_out:
        return ToolOutcome.TIMED_OUT
    if done.limit_hit and done.exit_code != 0:
        return ToolOutcome.LIMIT
    return ToolOutcome.SIGNAL if done.exit_code < 0 else ToolOutcome.RAN


def _problem(done: ExecResult, outcome: ToolOutcome) -> str:
    if outcome is ToolOutcome.TIMED_OUT:
        return f"timed out after {done.duration_seconds:.1f} s"
    if outcome is ToolOutcome.LIMIT:
        return f"stopped: {done.limit_hit} limit"
    if outcome is ToolOutcome.SIGNAL:
        return f"ended by signal {-done.exit_code}"
    if done.exit_code == 0:
        return ""
    last = done.stderr.strip().splitlines()[-1:] or [""]
    return f"exit code {done.exit_code}" + (f": {last[0]}" if last[0] else "")
