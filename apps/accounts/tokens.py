"""The secret of an API token: made once, found again by its hash."""

import hashlib
import secrets

MARK = "rt_"
PREFIX_LENGTH = 12


def make_secret() -> str:
    """A new token with 256 bits of randomness."""
    return MARK + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What is stored. A plain hash is enough: the secret is random, not a password."""
    return hashlib.sha256(secret.encode()).hexdigest()
