from pathlib import Path

import pytest

from gpu_workers.settings import SettingsError, load_settings


def test_defaults_are_below_the_home(tmp_path: Path) -> None:
    worker = load_settings({"RATCHET_HOME": str(tmp_path)})
    assert worker.models_dir == tmp_path / "models"
    assert worker.store.url == f"file://{tmp_path / 'objects'}"
    assert worker.broker_url.startswith("redis://")
    assert (worker.redis_url, worker.engine_urls, worker.control_url) == ("", (), "http://127.0.0.1:8000")


def test_given_values(tmp_path: Path) -> None:
    worker = load_settings(
        {
            "RATCHET_HOME": str(tmp_path),
            "REDIS_URL": "redis://r:1/0",
            "ROLLOUT_ENGINE_URLS": "http://a:1/, http://b:2",
            "RATCHET_CONTROL_URL": "https://c/",
            "RATCHET_WORKER_SECRET": "s",
        }
    )
    assert worker.broker_url == worker.redis_url == "redis://r:1/0"
    assert worker.engine_urls == worker.require_engines() == ("http://a:1", "http://b:2")
    assert (worker.control_url, worker.worker_secret) == ("https://c", "s")


def test_agents_stand_in_the_order_of_the_engines(tmp_path: Path) -> None:
    named = {"ROLLOUT_ENGINE_URLS": "http://a:1,http://a:2,http://b:1", "RATCHET_HOME": str(tmp_path)}
    assert load_settings(named).agents == {}
    agents = {"ROLLOUT_ENGINE_AGENTS": "http://a:9/, http://a:9, http://b:9", "ROLLOUT_AGENT_SECRET": "s"}
    worker = load_settings(named | agents)
    assert worker.agents == {"http://a:1": "http://a:9", "http://a:2": "http://a:9", "http://b:1": "http://b:9"}
    assert (worker.agent_secret, worker.snapshot_every) == ("s", 10)


def test_where_weights_are_sent_from(tmp_path: Path) -> None:
    worker = load_settings({"RATCHET_HOME": str(tmp_path)})
    assert (worker.address, worker.collective) == ("127.0.0.1", False)
    told = {"WEIGHTS_ADDRESS": "10.0.0.5", "WEIGHTS_COLLECTIVE": "true", "RATCHET_HOME": str(tmp_path)}
    assert (load_settings(told).address, load_settings(told).collective) == ("10.0.0.5", True)


def test_the_local_engine_and_control_plane_are_found_by_their_ports(tmp_path: Path) -> None:
    worker = load_settings({"RATCHET_HOME": str(tmp_path), "RATCHET_ENGINE_PORT": "31", "RATCHET_PORT": "32"})
    assert (worker.engine_urls, worker.control_url) == (("http://127.0.0.1:31",), "http://127.0.0.1:32")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CELERY_BROKER_URL", "http://x"),
        ("REDIS_URL", "localhost:6379"),
        ("ROLLOUT_ENGINE_URLS", "http://a,b:2"),
        ("ROLLOUT_ENGINE_AGENTS", "http://a"),
        ("ROLLOUT_ENGINE_AGENTS", "a:1"),
        ("WEIGHT_SNAPSHOT_EVERY", "0"),
        ("WEIGHTS_COLLECTIVE", "maybe"),
        ("RATCHET_ENGINE_PORT", "many"),
        ("RATCHET_PORT", "70000"),
        ("OBJECT_STORE_URL", "gopher://x/y"),
        ("RATCHET_CONTROL_URL", "ftp://x"),
    ],
)
def test_errors_start_with_the_variable(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: "):
        load_settings({"RATCHET_HOME": str(tmp_path), name: value})


def test_missing_engines_are_named_when_they_are_needed(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^ROLLOUT_ENGINE_URLS: "):
        load_settings({"RATCHET_HOME": str(tmp_path)}).require_engines()


def test_agents_are_found_by_the_engine_of_either_fleet(tmp_path: Path) -> None:
    shared = {"ROLLOUT_ENGINE_URLS": "http://a:1", "ROLLOUT_ENGINE_AGENTS": "http://a:2"}
    full = {"ROLLOUT_FULL_ENGINE_URLS": "http://b:1", "ROLLOUT_FULL_ENGINE_AGENTS": "http://b:2"}
    worker = load_settings({"RATCHET_HOME": str(tmp_path), **shared, **full})
    assert worker.agents == {"http://a:1": "http://a:2", "http://b:1": "http://b:2"}
    with pytest.raises(SettingsError, match=r"^ROLLOUT_FULL_ENGINE_AGENTS: names 1 agents for 0 engines"):
        load_settings({"RATCHET_HOME": str(tmp_path), "ROLLOUT_FULL_ENGINE_AGENTS": "http://b:2"})


def test_what_sandboxes_may_grant(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    worker = load_settings(
        {
            "RATCHET_HOME": str(tmp_path),
            "SANDBOX_NETWORK": "allowlist",
            "SANDBOX_NETWORK_HOSTS": "pypi.org:443, mirror.internal:80",
            "SANDBOX_PRIVATE_HOSTS": "mirror.internal:80",
            "SANDBOX_NETWORK_DENY": "5.9.0.0/16, 2a01:4f8::/32",
            "SANDBOX_DATA_ROOTS": f"sets={tmp_path / 'sets'},tests={tmp_path}:verifier_secret",
            "SANDBOX_MAX_PROCESSES": "32",
        }
    ).sandbox
    assert worker.network == "allowlist"
    assert {str(host) for host in worker.network_hosts} == {"pypi.org:443", "mirror.internal:80"}
    assert {str(host) for host in worker.private_hosts} == {"mirror.internal:80"}
    assert [str(network) for network in worker.network_deny] == ["5.9.0.0/16", "2a01:4f8::/32"]
    assert worker.data_roots["sets"].roles == {"input", "workspace"}
    assert worker.data_roots["tests"].roles == {"verifier_secret"}
    assert worker.max_processes == 32


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SANDBOX_NETWORK", "some"), ("SANDBOX_NETWORK", "allowlist"), ("SANDBOX_PRIVATE_HOSTS", "host"),
        ("SANDBOX_DATA_ROOTS", "x=/no/such/folder"), ("SANDBOX_DATA_ROOTS", "x=relative"),
        ("SANDBOX_DATA_ROOTS", "x=/usr:secret"), ("SANDBOX_MAX_MEMORY_BYTES", "1GB"), ("SANDBOX_CGROUP", "/usr"),
        ("SANDBOX_NETWORK_DENY", "5.9.0.1/16"),
    ],
)  # fmt: skip
def test_a_wrong_sandbox_setting_is_named(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"SANDBOX_{'NETWORK_HOSTS' if value == 'allowlist' else name[8:]}:"):
        load_settings({"RATCHET_HOME": str(tmp_path), name: value})


def test_bounds_of_sessions(tmp_path: Path) -> None:
    given = {"RATCHET_HOME": str(tmp_path), "RATCHET_SESSIONS_MAX": "7", "RATCHET_SESSION_IDLE_SECONDS": "60"}
    limits = load_settings(given).sessions
    assert (limits.max_sessions, limits.idle_seconds, limits.max_session_tokens) == (7, 60, 262_144)
    for name in ("RATCHET_SESSIONS_MAX", "RATCHET_SESSION_TOKENS", "RATCHET_SESSIONS_TOTAL_TOKENS"):
        with pytest.raises(SettingsError, match=f"^{name}:"):
            load_settings({"RATCHET_HOME": str(tmp_path), name: "0"})
