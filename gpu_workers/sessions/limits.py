"""Bounds of a session server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SessionLimits:
    """Of one server. Tokens count once, however many branches share them."""

    max_sessions: int = 4096
    max_session_tokens: int = 262_144  # of all branches of one session
    max_tokens: int = 33_554_432  # of all sessions
    max_running: int = 16  # turns of one session at once
    idle_seconds: float = 3600.0  # since the last turn began or ended
    max_seconds: float = 86_400.0  # since it was made
