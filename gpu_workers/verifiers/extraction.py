"""Finding the answer inside a text by a task's regular expression, within a time limit. Pure."""

import regex  # type: ignore[import-untyped]

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.verifiers.results import NoResult, TaskError

MAX_SEARCHED = 20_000  # characters from the end; a pattern of the task's author runs over the policy's text
SEARCH_SECONDS = 0.5  # the worker can do nothing else meanwhile, and a text may be written to make a pattern slow


def compile_pattern(pattern: str | None) -> regex.Pattern[str] | None:
    """Compile config `pattern`. Raises TaskError when it is not a regular expression."""
    if not pattern:
        return None
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise TaskError(f"verifier.config.pattern: {error}") from error
    if compiled.groups > 1:
        raise TaskError("verifier.config.pattern: at most one group, which is the answer")
    return compiled


def extract(text: str, pattern: regex.Pattern[str] | None) -> str | None:
    """The last match (its group where there is one); the whole text without a pattern; None without a match.

    Raises NoResult when the search takes too long.
    """
    if pattern is None:
        return text
    last = None
    try:
        for match in pattern.finditer(text[-MAX_SEARCHED:], timeout=SEARCH_SECONDS):
            last = match
    except TimeoutError as error:
        message = f"the pattern was not done with the answer after {SEARCH_SECONDS:g} s"
        raise NoResult(ReasonCode.VERIFIER_TIMEOUT, message) from error
    return None if last is None else last.group(pattern.groups)
