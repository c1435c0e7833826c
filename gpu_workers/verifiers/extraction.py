"""Finding the answer inside a text by a task's regular expression. Pure."""

import re

from gpu_workers.verifiers.results import TaskError

MAX_SEARCHED = 20_000  # characters from the end; a pattern of the task's author runs over the policy's text


def compile_pattern(pattern: str | None) -> re.Pattern[str] | None:
    """Compile config `pattern`. Raises TaskError when it is not a regular expression."""
    if not pattern:
        return None
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise TaskError(f"verifier.config.pattern: {error}") from error
    if compiled.groups > 1:
        raise TaskError("verifier.config.pattern: at most one group, which is the answer")
    return compiled


def extract(text: str, pattern: re.Pattern[str] | None) -> str | None:
    """The last match (its group where there is one); the whole text without a pattern; None without a match."""
    if pattern is None:
        return text
    last = None
    for match in pattern.finditer(text[-MAX_SEARCHED:]):
        last = match
    if last is None:
        return None
    return last.group(pattern.groups)
