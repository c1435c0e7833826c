"""api: any address of the REST API, for what has no command of its own."""

import json
import sys
from typing import Any
from urllib.parse import parse_qsl

import click

from ratchet_client.commands.session import Session, pass_session
from ratchet_client.errors import RatchetError
from ratchet_client.http import API
from ratchet_client.spec_files import read_spec


@click.command()
@click.argument("path")
@click.option("--method", "-X", default="", metavar="VERB", help="GET, or POST where there is a body.")
@click.option("--data", "-d", default="", metavar="JSON|@FILE|@-", help="The body: JSON or YAML.")
@click.option("--all", "every", is_flag=True, help="Every page of a list.")
@pass_session
def api(session: Session, path: str, method: str, data: str, every: bool) -> None:
    """Ask any address of the API and print the JSON.

    E.g. `ratchet api 'runs/?state=running'`; addresses are below /api/v1/.
    """
    path, _, query = path.removeprefix(session.login.url).removeprefix(API).lstrip("/").partition("?")
    params: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        params.setdefault(name, []).append(value)
    http = session.client.http
    if every:
        if data or method not in ("", "GET"):
            raise RatchetError("--all reads a list: it takes no body and no other method.")
        session.output.json(list(http.pages(path, params)))
        return
    body = _body(data) if data else None
    verb = (method or ("POST" if data else "GET")).upper()
    answer: Any
    if verb == "POST":
        answer = http.post(path, {} if body is None else body)
    else:
        response = http.request(verb, path, params=params, body=body)
        answer = response.json() if "json" in response.headers.get("Content-Type", "") else response.text or None
    session.output.json(answer)


def _body(data: str) -> Any:
    if data == "@-":
        return read_spec("standard input", sys.stdin.read()).value
    if data.startswith("@"):
        return read_spec(data[1:]).value
    try:
        return json.loads(data)
    except ValueError as error:
        raise RatchetError(f"--data is not JSON: {error}.", hint="@FILE reads a file, @- standard input.") from error
