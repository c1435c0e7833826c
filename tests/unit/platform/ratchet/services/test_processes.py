"""The process table and who gets which part of the environment."""

from pathlib import Path

import pytest

from gpu_workers.contracts import queues
from ratchet.env import Env, load_env
from ratchet.services.processes import PROCESSES, Plane, control_environment, environment, health_url, render


@pytest.fixture
def machine_env(tmp_path: Path) -> Env:
    return load_env({"RATCHET_HOME": str(tmp_path), "RATCHET_PORT": "9000"}, root=tmp_path)


def test_data_plane_gets_neither_database_nor_secret(machine_env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://leak")
    monkeypatch.setenv("PGPASSWORD", "leak")
    for spec in PROCESSES:
        variables = environment(spec, machine_env)
        assert variables["CELERY_BROKER_URL"] == machine_env.celery_broker_url
        if spec.plane is Plane.DATA:
            assert not {"DATABASE_URL", "SECRET_KEY", "PGPASSWORD"} & variables.keys(), spec.name
            assert machine_env.secret_key not in variables.values()
            assert ("RATCHET_WORKER_SECRET" in variables) == (spec.name == "gateway")
            assert "platform" not in variables["PYTHONPATH"].split("/")[-1]
        else:
            assert variables["DATABASE_URL"] == machine_env.database_url


def test_control_plane_reads_back_the_same_environment(machine_env: Env, tmp_path: Path) -> None:
    again = load_env(control_environment(machine_env), root=tmp_path)
    for name in ("mode", "port", "secret_key", "worker_secret", "database_url", "redis_url", "engine_urls", "home"):
        assert getattr(again, name) == getattr(machine_env, name)


def test_every_queue_has_exactly_one_kind_of_worker(machine_env: Env) -> None:
    served = []
    for spec in PROCESSES:
        words = render(spec, machine_env)
        served += words[words.index("-Q") + 1].split(",") if "-Q" in words else []
    known = {
        getattr(queues, name)
        for name in ("CONTROL", "INGEST", "HEARTBEAT", "ROLLOUT", "VERIFY", "TRAIN", "FLEET", "WEBHOOK")
    }
    assert sorted(served) == sorted(known)


def test_commands_are_filled_in(machine_env: Env) -> None:
    for spec in PROCESSES:
        words = " ".join(render(spec, machine_env, model="/m"))
        assert "{" not in words + health_url(spec, machine_env)
    web = next(spec for spec in PROCESSES if spec.name == "web")
    assert "--port 9000" in " ".join(render(web, machine_env))
    assert health_url(web, machine_env) == "http://127.0.0.1:9000/healthz"
