"""The environment: defaults, precedence, and errors that name the variable."""

from pathlib import Path

import pytest

from ratchet.env import VARIABLES, EnvError, Mode, load_env


def load(tmp_path: Path, **variables: str):
    return load_env({"RATCHET_HOME": str(tmp_path / "home"), **variables}, root=tmp_path)


def problems(tmp_path: Path, **variables: str) -> list[str]:
    with pytest.raises(EnvError) as caught:
        load(tmp_path, **variables)
    return caught.value.problems


def test_everything_is_embedded_by_default(tmp_path: Path) -> None:
    env = load(tmp_path)
    assert env.mode is Mode.DEVELOPMENT
    assert env.database_embedded and env.redis_embedded and env.object_store_embedded and env.engine_embedded
    assert env.database_url == f"postgres://ratchet_app@/ratchet?host={tmp_path}/home/run"
    assert env.database_owner_url == f"postgres://postgres@/ratchet?host={tmp_path}/home/run"
    assert env.redis_url == f"unix://{tmp_path}/home/run/valkey.sock"
    assert env.celery_broker_url == f"redis+socket://{tmp_path}/home/run/valkey.sock"
    assert env.object_store_url == f"file://{tmp_path}/home/objects"
    assert env.engine_urls == ("http://127.0.0.1:8010",)


def test_a_url_replaces_its_part_alone(tmp_path: Path) -> None:
    env = load(
        tmp_path, REDIS_URL="redis://cache:6379/3", ROLLOUT_ENGINE_URLS="http://a:1/, http://b:2", DATABASE_URL=""
    )
    assert env.celery_broker_url == "redis://cache:6379/3"
    assert env.engine_urls == ("http://a:1", "http://b:2")
    assert not env.redis_embedded and not env.engine_embedded
    assert env.database_embedded


@pytest.mark.parametrize("name", ["", "smollm2", "smollm2-135m-instruct"])
def test_the_base_model_has_the_name_that_it_is_registered_by(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, RATCHET_ENGINE_MODEL=name).engine_model == "smollm2-135m-instruct"
    assert load(tmp_path, RATCHET_ENGINE_MODEL="tiny").engine_model == "tiny"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RATCHET_ENV", "staging"),
        ("DEBUG", "perhaps"),
        ("LOG_LEVEL", "LOUD"),
        ("RATCHET_PORT", "0"),
        ("RATCHET_ENGINE_PORT", "65536"),
        ("RATCHET_GATEWAY_PORT", "-1"),
        ("DATABASE_URL", "mysql://x/y"),
        ("DATABASE_URL", "postgres://"),
        ("DATABASE_POOL_SIZE", "none"),
        ("REDIS_URL", "http://x"),
        ("REDIS_URL", "redis://host:port"),
        ("CELERY_BROKER_URL", "sqla+postgresql://x/y"),
        ("OBJECT_STORE_URL", "/just/a/path"),
        ("ROLLOUT_ENGINE_URLS", "localhost:30000"),
        ("PUBLIC_URL", "ratchet.example"),
        ("SECRET_KEY", "short"),
        ("RATCHET_WORKER_SECRET", "short"),
        ("RATCHET_ENGINE_MODEL", "gpt-7"),
        ("RATCHET_ENGINE_MODEL", "/no/such/folder"),
        ("ROLLOUT_CONCURRENCY", "1.5"),
        ("TORCH_THREADS", "0"),
        ("RATCHET_HOME", "/dev/null"),
        ("RATCHET_HOME", "/tmp/what?"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path: Path, variable: str, value: str) -> None:
    found = problems(tmp_path, **{variable: value})
    assert len(found) == 1
    assert found[0].startswith(variable)


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, RATCHET_PORT="x", DEBUG="x", REDIS_URL="x")
    assert {problem.split("=")[0].split()[0] for problem in found} == {"RATCHET_PORT", "DEBUG", "REDIS_URL"}


def test_two_services_cannot_share_a_port(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, RATCHET_PORT="9000", RATCHET_GATEWAY_PORT="9000")
    assert "RATCHET_PORT" in problem and "RATCHET_GATEWAY_PORT" in problem


def test_production_needs_its_secrets_and_hosts(tmp_path: Path) -> None:
    found = problems(tmp_path, RATCHET_ENV="production")
    assert {problem.split()[0] for problem in found} == {"SECRET_KEY", "RATCHET_WORKER_SECRET", "ALLOWED_HOSTS"}
    env = load(
        tmp_path,
        RATCHET_ENV="production",
        SECRET_KEY="k" * 50,
        RATCHET_WORKER_SECRET="w" * 32,
        ALLOWED_HOSTS="ratchet.example, www.ratchet.example",
    )
    assert env.allowed_hosts == ("ratchet.example", "www.ratchet.example")
    assert not (tmp_path / "home").exists()


def test_development_secrets_are_random_private_and_kept(tmp_path: Path) -> None:
    first, again = load(tmp_path), load(tmp_path)
    assert first.secret_key == again.secret_key != first.worker_secret
    assert len(first.secret_key) >= 50
    path = tmp_path / "home" / "secrets" / "secret_key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_env({"RATCHET_HOME": str(tmp_path / "other")}, root=tmp_path).secret_key != first.secret_key


def test_long_homes_get_short_sockets(tmp_path: Path) -> None:
    env = load_env({"RATCHET_HOME": str(tmp_path / ("long" * 30))}, root=tmp_path)
    assert len(str(env.home.sockets / ".s.PGSQL.5432.lock")) <= 107
    assert env.redis_url == f"unix://{env.home.sockets}/valkey.sock"


def test_file_yields_to_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("RATCHET_PORT=9100\nRATCHET_GATEWAY_PORT=9101\n")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores what read_env sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RATCHET_GATEWAY_PORT", "9200")
    env = load_env(root=tmp_path)
    assert (env.port, env.gateway_port) == (9100, 9200)


def test_sign_in_by_a_provider_needs_all_of_its_variables(tmp_path: Path) -> None:
    server = {"OIDC_SERVER_URL": "https://id.example.org/", "OIDC_CLIENT_ID": "ratchet"}
    found = problems(tmp_path, **server, WEBHOOK_NETWORKS="10.0.0.0/8,x")
    assert [words.split()[0].rstrip(":") for words in found] == ["WEBHOOK_NETWORKS", "OIDC_CLIENT_SECRET"]
    env = load(tmp_path, **server, OIDC_CLIENT_SECRET="s", WEBHOOK_NETWORKS="10.0.0.0/8")
    assert (env.oidc_server_url, env.webhook_networks) == ("https://id.example.org", ("10.0.0.0/8",))


def test_engines_of_full_runs_are_off_unless_named_or_asked_for(tmp_path: Path) -> None:
    assert load(tmp_path).full_engine_urls == ()
    assert not load(tmp_path, RATCHET_FULL_ENGINE_PORT="9").full_engine_embedded
    asked = load(tmp_path, RATCHET_FULL_ENGINE="1", RATCHET_FULL_ENGINE_PORT="8012")
    assert asked.full_engine_embedded and asked.full_engine_urls == ("http://127.0.0.1:8012",)
    named = load(tmp_path, RATCHET_FULL_ENGINE="1", ROLLOUT_FULL_ENGINE_URLS="http://a:1")
    assert not named.full_engine_embedded and named.full_engine_urls == ("http://a:1",)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"ROLLOUT_FULL_ENGINE_URLS": "http://a:1", "ROLLOUT_ENGINE_URLS": "http://a:1,http://b:1"}, "of its own"),
        ({"RATCHET_FULL_ENGINE": "1", "RATCHET_FULL_ENGINE_PORT": "8010"}, "RATCHET_FULL_ENGINE_PORT"),
        (
            {
                "ROLLOUT_FULL_ENGINE_URLS": "http://a:1",
                "ROLLOUT_FULL_ENGINE_AGENTS": "http://a:2,http://a:3",
                "ROLLOUT_AGENT_SECRET": "s" * 32,
            },
            "ROLLOUT_FULL_ENGINE_AGENTS names 2 agents for 1 engines",
        ),
    ],
)
def test_engines_of_full_runs_that_cannot_be_used_are_refused(
    tmp_path: Path, variables: dict[str, str], words: str
) -> None:
    (found,) = problems(tmp_path, **variables)
    assert words in found


def test_engines_agents_are_as_many_and_know_the_secret(tmp_path: Path) -> None:
    agents = {"ROLLOUT_ENGINE_URLS": "http://a:1,http://b:1", "ROLLOUT_ENGINE_AGENTS": "http://a:9"}
    found = problems(tmp_path, **agents)
    assert [problem.split()[0] for problem in found] == ["ROLLOUT_ENGINE_AGENTS", "ROLLOUT_AGENT_SECRET"]
    agents |= {"ROLLOUT_ENGINE_AGENTS": "http://a:9,http://b:9", "ROLLOUT_AGENT_SECRET": "s" * 32}
    env = load_env({"RATCHET_HOME": str(tmp_path), **agents}, root=tmp_path)
    assert env.engine_agents == ("http://a:9", "http://b:9")
