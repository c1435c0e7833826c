"""Finding the answer inside a text by a task's regular expression, within a time limit. Pure."""

import regex  # type: ignore[import-untyped]

from gpu_workers.contracts.enums import ReasonCode
from gpu_workers.verifiers.alternatives import Value, alternatives
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
    found = matches(text, pattern)
    return found[-1].group(pattern.groups) if found else None


def several_matches(text: str, pattern: regex.Pattern[str] | None) -> list[str]:
    """The different answers in the required form among which a text leaves the choice. Raises NoResult as extract."""
    if pattern is None:
        return []
    values = [
        Value(" ".join(match.group(pattern.groups).split()), match.start(), match.end())
        for match in matches(text, pattern)
        if match.group(pattern.groups) is not None
    ]
    return alternatives(text[-MAX_SEARCHED:], values)


def matches(text: str, pattern: regex.Pattern[str]) -> list[regex.Match[str]]:
    """All matches near the end of a text. Raises NoResult when the search takes too long."""
    try:
        return list(pattern.finditer(text[-MAX_SEARCHED:], timeout=SEARCH_SECONDS))
    except TimeoutError as error:
        message = f"the pattern was not done with the answer after {SEARCH_SECONDS:g} s"
        raise NoResult(ReasonCode.VERIFIER_TIMEOUT, message) from error
