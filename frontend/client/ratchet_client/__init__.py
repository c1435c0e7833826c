"""Python client of a Ratchet server: `Client(url, token)` has the nouns of the REST API as attributes."""

from ratchet_client.client import Client
from ratchet_client.errors import ApiError, NotLoggedIn, RatchetError, SpecError, Unreachable
from ratchet_client.feed import RunFeed, Update

__all__ = ["ApiError", "Client", "NotLoggedIn", "RatchetError", "RunFeed", "SpecError", "Unreachable", "Update"]
