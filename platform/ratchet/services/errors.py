"""Errors of starting and supervising services: what, where, what to do."""


class ServiceError(RuntimeError):
    """A service that cannot be started or kept; the message says what to do."""
