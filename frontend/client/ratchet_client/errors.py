"""What can go wrong, each with what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldError:
    """One wrong field: dotted `path` within what was sent, and `where` it stands in a file (`spec.yaml:7`)."""

    path: str
    message: str
    where: str = ""


class RatchetError(Exception):
    """A failure that a person can act on. `hint` says how. `status`: the HTTP status; None without a server's part."""

    code = "client_error"
    status: int | None = None

    def __init__(self, message: str, *, hint: str = "", fields: Sequence[FieldError] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = list(fields)


class UsageProblem(RatchetError):
    """The command line cannot be used as it is."""

    code = "usage"


class NotFound(RatchetError):
    """Of what the caller may see, nothing has that name; says the same as the server of an id."""

    code, status = "not_found", 404


class NotLoggedIn(RatchetError):
    """No server or no token is known."""

    code = "not_logged_in"


class SpecError(RatchetError):
    """A file cannot be read as a spec."""

    code = "spec_unreadable"


class Unreachable(RatchetError):
    """The server gave no answer in time."""

    code = "unreachable"


class TimedOut(RatchetError):
    """The time that the caller allowed is over; the work goes on."""

    code = "timed_out"


class ApiError(RatchetError):
    """A refusal of the server, from its RFC 9457 problem document. Programs read `code`, which is stable."""

    status: int

    def __init__(
        self, status: int, problem: Mapping[str, Any], *, request: str, retry_after: float | None = None
    ) -> None:
        self.status = status
        self.code = str(problem.get("code", "")) or f"http_{status}"
        self.request = request
        self.retry_after = retry_after
        errors = problem.get("errors")
        fields = [
            FieldError(str(error.get("path", "")), str(error.get("message", "")))
            for error in (errors if isinstance(errors, list) else [])
            if isinstance(error, Mapping)
        ]
        message = str(problem.get("detail") or problem.get("title") or f"The server answered {status}.")
        super().__init__(message, hint=_hint(status, self.code), fields=fields)


def _hint(status: int, code: str) -> str:
    if status == 401:
        return "Log in again: ratchet login"
    if code == "evidence_changed":
        return "Look at the gate again before deciding: ratchet gate show"
    if status == 429:
        return "Wait a moment, then repeat the command."
    if status >= 500:
        return "The server failed; its logs say why. Repeating the command is safe where it only reads."
    return ""
