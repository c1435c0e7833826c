"""login, logout, whoami and tokens."""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import click

from ratchet_client.client import Client
from ratchet_client.commands.output import when
from ratchet_client.commands.session import Session, in_project, json_option, pass_session
from ratchet_client.credentials import Login, check_url, forget_login, load_login, save_login, write_private
from ratchet_client.errors import ApiError, NotLoggedIn, RatchetError

_LOCAL = ("127.0.0.1", "localhost", "::1")


@click.command()
@click.argument("url", required=False, default="")
@click.option("--with-token", is_flag=True, help="Read the token from standard input.")
@in_project
def login(session: Session, url: str, with_token: bool) -> None:
    """Store a token for a server.

    The file can be read by you alone.

    The token is made on the server's Account page, and is never an argument: others could read it in the list of
    processes. Without a terminal it comes from standard input or RATCHET_TOKEN.
    """
    url = check_url(url or session.url or os.environ.get("RATCHET_URL", "") or _known_url())
    output = session.output
    if url.startswith("http://") and urlsplit(url).hostname not in _LOCAL:
        output.note(f"{url} is not encrypted: the token can be read on the way.")
    if with_token:
        token = sys.stdin.readline()
    elif "RATCHET_TOKEN" in os.environ:
        token = os.environ["RATCHET_TOKEN"]
    elif sys.stdin.isatty():
        output.note(f"Make a token at {url}/account/ and paste it here; it is not shown.")
        token = click.prompt("Token", hide_input=True, err=True)
    else:
        raise RatchetError("There is no terminal to ask for the token.", hint="ratchet login URL --with-token < file")
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise RatchetError("That is no token: it looks like rt_ and letters.", hint=f"Make one at {url}/account/")
    try:
        with Client(url, token, patience_seconds=session.patience_seconds, on_wait=output.note_once) as client:
            me = client.accounts.me()
    except ApiError as error:
        if error.status == 401:
            raise RatchetError(
                f"{url} does not know this token, or it has expired.", hint=f"Make a new one at {url}/account/"
            ) from error
        raise
    projects = [project["slug"] for project in me["projects"]]
    project = session.wanted_project or (projects[0] if len(projects) == 1 else "")
    if project and project not in projects:
        raise RatchetError(f"You are in no project {project}; yours are {', '.join(projects) or 'none'}.")
    path = save_login(Login(url, token, me["username"], project))
    words = {"server": url, "user": me["username"], "project": project or None, "stored in": str(path)}
    output.record({"url": url, "username": me["username"], "project": project, "path": str(path)}, words)


@click.command()
@json_option
@pass_session
def logout(session: Session) -> None:
    """Forget the stored token. It stays valid: `ratchet tokens revoke` ends it."""
    url = check_url(session.url or os.environ.get("RATCHET_URL", "") or _known_url())
    if not forget_login(url):
        raise NotLoggedIn(f"No token is stored for {url}.")
    session.output.record({"url": url}, {"forgotten": url})


@click.command()
@json_option
@pass_session
def whoami(session: Session) -> None:
    """Who you are, and what you may do where."""
    me = session.client.accounts.me()
    fields: dict[str, object] = {"server": session.login.url, "user": me["username"]}
    fields |= {project["slug"]: ", ".join(project["permissions"]) for project in me["projects"]}
    session.output.record(me, fields)


@click.group()
def tokens() -> None:
    """Tokens for programs."""


@tokens.command("list")
@json_option
@pass_session
def list_tokens(session: Session) -> None:
    """Your tokens, without their secrets."""
    session.output.table(
        session.client.tokens.list(),
        [
            ("id", lambda token: token["id"]),
            ("name", lambda token: token["name"]),
            ("starts", lambda token: token["prefix"]),
            ("project", lambda token: token["project"]),
            ("scopes", lambda token: " ".join(token["scopes"]) or "all you may do"),
            ("expires", lambda token: when(token["expires_at"])),
            ("revoked", lambda token: when(token["revoked_at"])),
            ("last used", lambda token: when(token["last_used_at"])),
        ],
    )


@tokens.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, metavar="RESOURCE:ACTION", help="May be repeated; none: all you may.")
@click.option("--days", type=click.IntRange(min=1), default=None, help="How long it is good for.")
@click.option("--save-to", type=click.Path(dir_okay=False, path_type=Path), help="Write the secret there (mode 600).")
@in_project
def create_token(session: Session, name: str, scopes: tuple[str, ...], days: int | None, save_to: Path | None) -> None:
    """Make a token. Its secret is shown this once, or only written to a file."""
    issued = session.client.tokens.create(name, project=session.wanted_project or None, scopes=scopes, days=days)
    secret = issued["token"]
    if save_to:
        try:
            write_private(save_to.absolute(), secret + "\n")
        except OSError as error:
            session.client.tokens.revoke(issued["id"])
            raise RatchetError(f"{save_to} cannot be written ({error.strerror}); the token was revoked.") from error
        issued["token"] = secret = f"in {save_to}"
    fields = {"id": issued["id"], "name": issued["name"], "expires": when(issued["expires_at"]), "secret": secret}
    session.output.record(issued, fields)


@tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@json_option
@pass_session
def revoke_token(session: Session, token_id: str) -> None:
    """End a token now."""
    session.client.tokens.revoke(token_id)
    session.output.record({"id": token_id}, {"revoked": token_id})


def _known_url() -> str:
    try:
        return load_login().url
    except NotLoggedIn:
        return ""
