"""The caller, projects and tokens."""

from collections.abc import Iterator, Sequence

from ratchet_client.resources.resource import Resource
from ratchet_client.types import IssuedToken, Me, Project, Token


class Accounts(Resource):
    def me(self) -> Me:
        """Who the token belongs to, and what they may do where."""
        me: Me = self._http.get("me/")
        return me

    def projects(self) -> Iterator[Project]:
        return self._http.pages("projects/")


class Tokens(Resource):
    def list(self) -> Iterator[Token]:
        return self._http.pages("tokens/")

    def create(
        self, name: str, *, project: str | None = None, scopes: Sequence[str] = (), days: int | None = None
    ) -> IssuedToken:
        """A new token; its secret is in this answer alone. No idempotency key: a kept answer would keep the secret."""
        body = {"name": name, "scopes": list(scopes)}
        body |= {"project": project} if project else {}
        issued: IssuedToken = self._http.post("tokens/", body | ({"days": days} if days else {}), key=None)
        return issued

    def revoke(self, token_id: str) -> None:
        self._http.request("DELETE", f"tokens/{token_id}/")
