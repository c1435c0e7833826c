"""What every command shares: the login, the client, the project meant, how references are resolved, options."""

import os
import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any
from uuid import UUID

import click

from ratchet_client.client import Client
from ratchet_client.commands.output import Output
from ratchet_client.credentials import Login, load_login
from ratchet_client.errors import NotFound, UsageProblem


class Session:
    """Lazy: commands that need no server ask none."""

    def __init__(self) -> None:
        self.url = ""
        self.patience_seconds = 30.0
        self.output = Output()
        self.wanted_project = ""

    @cached_property
    def login(self) -> Login:
        return load_login(self.url)

    @cached_property
    def client(self) -> Client:
        login, patience = self.login, self.patience_seconds
        return Client(login.url, login.token, patience_seconds=patience, on_wait=self.output.note_once)

    @cached_property
    def impatient(self) -> Client:
        """For watching: who watches shows the pauses itself."""
        return Client(self.login.url, self.login.token, patience_seconds=0)

    @cached_property
    def project(self) -> str:
        """--project, RATCHET_PROJECT, the login's, or the only one there is."""
        if named := self.wanted_project or os.environ.get("RATCHET_PROJECT", "") or self.login.project:
            return named
        slugs = [project["slug"] for project in self.client.accounts.me()["projects"]]
        if len(slugs) == 1:
            return slugs[0]
        known = f"yours are {', '.join(slugs)}" if slugs else "you are in none"
        raise UsageProblem(f"Which project? ({known})", hint="--project SLUG, or ratchet login --project SLUG")

    def close(self) -> None:
        """End the connections that were opened."""
        for name in ("client", "impatient"):
            if name in self.__dict__:
                getattr(self, name).close()

    @property
    def project_filter(self) -> str:
        """Of lists: the project meant, or all."""
        return self.wanted_project or os.environ.get("RATCHET_PROJECT", "") or self.login.project

    def find_run(self, reference: str) -> str:
        """The id of a run given by id, by number, or as `last`."""
        if reference.isdecimal():  # the server finds it among thousands
            return self._find("run", reference, partial(self.client.runs.list, number=reference))
        return self._find("run", reference, self.client.runs.list)

    def find_gate(self, reference: str) -> str:
        """The id of a gate given by id, by number, or as `last`."""
        return self._find("gate", reference, self.client.gates.list)

    def find_evaluation(self, reference: str) -> str:
        """The id of an evaluation given by id, or as `last`."""
        if _is_id(reference):
            return reference
        if reference != "last":
            raise UsageProblem(
                f"{reference!r} is no evaluation: give its id, or `last`.", hint="ratchet evaluations list"
            )
        for evaluation in self.client.evaluations.list(project=self.project, page_size=1):
            return evaluation["id"]
        raise NotFound(f"There is no evaluation in project {self.project} that you may see.")

    def find_suite(self, reference: str) -> str:
        """The id of a suite given by id, slug (newest version) or slug@version."""
        if _is_id(reference):
            return reference
        slug, _, version = reference.partition("@")
        for suite in self.client.suites.list(project=self.project, slug=slug):
            if not version or version == str(suite["version"]):
                return suite["id"]
        raise NotFound(
            f"There is no suite {reference} in project {self.project} that you may see.", hint="ratchet suites list"
        )

    def find_policy(self, reference: str) -> str:
        """The id of a policy given by id or slug."""
        if _is_id(reference):
            return reference
        for policy in self.client.policies.list(project=self.project, slug=reference):
            return policy["id"]
        raise NotFound(
            f"There is no policy {reference} in project {self.project} that you may see.", hint="ratchet policies list"
        )

    def _find(self, noun: str, reference: str, rows: Callable[..., Iterable[Any]]) -> str:
        if _is_id(reference):
            return reference
        if not (reference == "last" or re.fullmatch(r"[1-9]\d{0,9}", reference)):
            raise UsageProblem(f"{reference!r} is no {noun}: give its number, its id, or `last`.")
        for row in rows(project=self.project, page_size=200):  # newest first
            if reference == "last" or row["number"] == int(reference):
                return str(row["id"])
            if row["number"] < int(reference):
                break
        raise NotFound(
            f"There is no {noun} {reference} in project {self.project} that you may see.", hint=f"ratchet {noun}s list"
        )


def _is_id(reference: str) -> bool:
    try:
        return str(UUID(reference)) == reference.lower()
    except ValueError:
        return False


pass_session = click.make_pass_decorator(Session)


def _ask_json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Session).output.as_json = True


def _set_project(context: click.Context, parameter: click.Parameter, value: str) -> None:
    if value:
        context.ensure_object(Session).wanted_project = value


json_option = click.option(
    "--json", "as_json", is_flag=True, expose_value=False, callback=_ask_json, help="Print JSON for programs."
)
project_option = click.option(
    "--project", "-p", metavar="SLUG", expose_value=False, callback=_set_project, help="The project, by slug."
)
key_option = click.option(
    "--key", default="", metavar="TEXT", help="Idempotency key: the same key and content twice are done once."
)


def in_project(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command about one project: takes --project and --json, and gets the session first."""
    return project_option(json_option(pass_session(command)))
