"""`Client`: the nouns of the API on one connection."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from ratchet_client.credentials import load_login
from ratchet_client.http import Http
from ratchet_client.resources.accounts import Accounts, Tokens
from ratchet_client.resources.evaluations import Evaluations
from ratchet_client.resources.gates import Gates
from ratchet_client.resources.policies import Channels, Policies
from ratchet_client.resources.runs import Episodes, Runs
from ratchet_client.resources.suites import Suites


class Client:
    """`with Client(url, token) as ratchet: ratchet.runs.submit(spec, project="mine")`.

    Methods return the API's JSON as typed dictionaries (`ratchet_client.types`); lists are iterators over all pages.
    A refusal raises ApiError, a server that stays away for `patience_seconds` Unreachable.
    """

    def __init__(
        self, url: str, token: str, *, patience_seconds: float = 30.0, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self.http = Http(url, token, patience_seconds=patience_seconds, on_wait=on_wait)
        self.accounts = Accounts(self.http)
        self.tokens = Tokens(self.http)
        self.suites = Suites(self.http)
        self.policies = Policies(self.http)
        self.channels = Channels(self.http)
        self.runs = Runs(self.http)
        self.episodes = Episodes(self.http)
        self.evaluations = Evaluations(self.http)
        self.gates = Gates(self.http)

    @classmethod
    def from_login(cls, url: str = "") -> Self:
        """With RATCHET_URL and RATCHET_TOKEN, else with what `ratchet login` stored."""
        login = load_login(url)
        return cls(login.url, login.token)

    def page(self, path: str) -> str:
        """Address of a page for people."""
        return f"{self.http.url}/{path.lstrip('/')}"

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
