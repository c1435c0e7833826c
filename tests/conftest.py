"""The PostgreSQL and Valkey of a test session: started only when a test asks, in a folder of their own."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.env import Env, load_env
from ratchet.services.postgres import EmbeddedPostgres
from ratchet.services.valkey import EmbeddedValkey


@pytest.fixture(scope="session")
def env() -> Env:
    """The session's environment, as the test settings left it."""
    return load_env()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their place: those of an archive hold the second, and the processes of a run must agree."""
    return argname if isinstance(val, bytes) else None


def pytest_unconfigure() -> None:
    """Remove the temporary home that the test settings made."""
    home = Path(os.environ.get("RATCHET_HOME", ""))
    if home.name.startswith("ratchet-test-"):
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(env: Env) -> Iterator[str]:
    """URL of a running PostgreSQL: that of DATABASE_URL, else an embedded one."""
    if not env.database_embedded:
        yield env.database_owner_url
        return
    home = env.home
    server = EmbeddedPostgres(home.postgres, home.sockets, home.logs / "postgres.log", dict(os.environ), durable=False)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server: str) -> None:
    """pytest-django's hook before the first database test: by then the server runs."""


@pytest.fixture(scope="session")
def redis_url(env: Env) -> Iterator[str]:
    """URL of a running Valkey: that of REDIS_URL, else an embedded one."""
    if not env.redis_embedded:
        yield env.redis_url
        return
    home = env.home
    server = EmbeddedValkey(home.valkey, home.valkey_socket, home.logs / "valkey.log", dict(os.environ), durable=False)
    server.start()
    yield server.url
    server.stop()
