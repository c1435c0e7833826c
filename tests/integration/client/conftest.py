"""The command line as people run it: a process of its own, without anything of the server, against the real server."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.accounts.services import issue_token
from tests.support.serving import ServedApplication
from tests.support.worlds import World, make_world

ROOT = Path(__file__).parents[3]
Command = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def application(transactional_db, settings, tmp_path) -> Iterator[ServedApplication]:
    settings.OBJECT_STORE_URL = f"file://{tmp_path / 'objects'}"
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    with ServedApplication() as served:
        yield served


@pytest.fixture
def world(application) -> World:
    return make_world()


@pytest.fixture
def environment(tmp_path) -> Callable[..., dict[str, str]]:
    """What a process of the command sees: a home, and the client alone on its path."""

    def make(**more: str) -> dict[str, str]:
        plain = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(ROOT / "frontend/client"),
        }
        return {**plain, "PYTHONUTF8": "1", **more}

    return make


@pytest.fixture
def token_of(world) -> Callable[[str], str]:
    """A new token of the user with this role."""
    return lambda role: issue_token(user=world.users[role], name="client", by=None).secret


@pytest.fixture
def arguments() -> Callable[..., list[str]]:
    return lambda *words: [sys.executable, "-W", "error", "-m", "ratchet_client", *map(str, words)]


@pytest.fixture
def ratchet(application, token_of, environment, arguments, tmp_path) -> Command:
    """Run the command as a role and return what it printed; `code` is the exit code that must come."""
    tokens: dict[str, str] = {}

    def run(*words: object, role: str = "engineer", code: int = 0, stdin: str = "", **more: str):
        if role not in tokens:
            tokens[role] = token_of(role)
        more = {"RATCHET_URL": application.url, "RATCHET_TOKEN": tokens[role], **more}
        done = subprocess.run(
            arguments(*words), env=environment(**more), input=stdin, capture_output=True, text=True, cwd=tmp_path,
            timeout=60,
        )  # fmt: skip
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
