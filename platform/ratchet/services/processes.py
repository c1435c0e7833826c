"""The process table: what runs, on which plane, with which command and which part of the environment."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpu_workers.contracts import exporter, queues
from ratchet.env import ROOT, Env


class Plane(StrEnum):
    CONTROL = "control"  # Django, the database and its secrets
    DATA = "data"  # broker, object store and engines only


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One row. `command` is formatted with the addresses of the machine it runs on, after `python -m`."""

    name: str
    plane: Plane
    command: str
    health: str = ""  # URL that answers 200 when it is ready; empty: ready when started
    secrets: tuple[str, ...] = ()  # data plane: secrets it needs nevertheless
    stop_signal: int = signal.SIGTERM
    stop_seconds: float = 10.0


_CONTROL = "celery -A ratchet worker --without-gossip --without-mingle -l {log_level} -P threads"
_WORKERS = "celery -A gpu_workers worker --without-gossip --without-mingle -l {log_level} -P threads"

PROCESSES: tuple[ProcessSpec, ...] = (
    ProcessSpec(
        "web",
        Plane.CONTROL,
        "uvicorn ratchet.asgi:application --host {host} --port {port} --lifespan off --no-access-log "
        "--timeout-graceful-shutdown 3 --log-level warning --ws-per-message-deflate false "
        "--no-proxy-headers",  # ratchet.asgi reads them, of TRUSTED_PROXIES alone
        health="http://127.0.0.1:{port}/healthz",
    ),
    ProcessSpec("control", Plane.CONTROL, f"{_CONTROL} -n control@%h -Q {queues.CONTROL} -c 2"),
    ProcessSpec("beat", Plane.CONTROL, "celery -A ratchet beat -l {log_level} -S celery.beat:Scheduler --pidfile="),
    ProcessSpec("ingest", Plane.CONTROL, f"{_CONTROL} -n ingest@%h -Q {queues.INGEST} -c 1"),
    # Liveness never waits behind a batch of episodes.
    ProcessSpec("heartbeat", Plane.CONTROL, f"{_CONTROL} -n heartbeat@%h -Q {queues.HEARTBEAT} -c 1"),
    # Addresses outside may be slow: they hold up nothing but each other.
    ProcessSpec("webhook", Plane.CONTROL, f"{_CONTROL} -n webhook@%h -Q {queues.WEBHOOK} -c 4"),
    ProcessSpec(
        "engine",
        Plane.DATA,
        "gpu_workers.engines.embedded --host {host} --port {engine_port} --model {model}",
        health="http://127.0.0.1:{engine_port}/health",
    ),
    ProcessSpec(
        "rollout",
        Plane.DATA,
        f"{_WORKERS} -n rollout@%h -Q {queues.ROLLOUT},{queues.VERIFY} -c {{rollout_concurrency}}",
    ),
    ProcessSpec(
        "fleet", Plane.DATA, f"{_WORKERS} -n fleet@%h -Q {queues.FLEET} -c 1", secrets=("ROLLOUT_AGENT_SECRET",)
    ),
    # A thread per job waits for its own subprocess: CUDA and torch never live in the worker. A job is taken when a
    # thread is free for it, never ahead: it would wait here while another worker is idle.
    ProcessSpec("train", Plane.DATA, f"{_WORKERS} -n train@%h -Q {queues.TRAIN} -c 2 --disable-prefetch"),
    ProcessSpec(
        "gateway",
        Plane.DATA,
        "gpu_workers.serving --host {host} --port {gateway_port}",
        health="http://127.0.0.1:{gateway_port}/health",
        secrets=("RATCHET_WORKER_SECRET",),
    ),
)

# Started on request alone (RATCHET_FULL_ENGINE): it holds a second copy of the model.
FULL_ENGINE = ProcessSpec(
    "full-engine",
    Plane.DATA,
    "gpu_workers.engines.embedded --host {host} --port {full_engine_port} --model {model}",
    health="http://127.0.0.1:{full_engine_port}/health",
)

# What any process of any machine may need: paths, locale, proxies' certificates, accelerators, object-store clients,
# what its sandboxes may grant, how many sessions its gateway keeps.
_SYSTEM = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
_SYSTEM_PREFIXES = ("CUDA_", "NVIDIA_", "AWS_", "XDG_", "SANDBOX_", "RATCHET_SESSION")


def render(spec: ProcessSpec, env: Env, *, host: str = "127.0.0.1", model: str = "") -> list[str]:
    """The argument list of a process on this machine."""
    return [sys.executable, "-m", *(_fill(word, env, host, model) for word in spec.command.split())]


def health_url(spec: ProcessSpec, env: Env) -> str:
    return _fill(spec.health, env, "127.0.0.1", "")


def _fill(text: str, env: Env, host: str, model: str) -> str:
    return text.format(
        host=host,
        port=env.port,
        engine_port=env.engine_port,
        full_engine_port=env.full_engine_port,
        gateway_port=env.gateway_port,
        rollout_concurrency=env.rollout_concurrency,
        log_level=env.log_level.lower(),
        model=model,
    )


def system_environment(values: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of our own environment that every child gets."""
    source = os.environ if values is None else values
    kept = {name: value for name, value in source.items() if name in _SYSTEM or name.startswith(_SYSTEM_PREFIXES)}
    return kept | {"PYTHONUNBUFFERED": "1"}


def data_environment(env: Env) -> dict[str, str]:
    """What the data plane may know: no database address, no secret of Django's."""
    threads = str(env.torch_threads)
    return system_environment() | {
        "PYTHONPATH": str(ROOT),
        "RATCHET_ENV": str(env.mode),  # production refuses sandboxes that isolate nothing
        "RATCHET_HOME": str(env.home.root),
        "REDIS_URL": env.redis_url,
        "CELERY_BROKER_URL": env.celery_broker_url,
        "OBJECT_STORE_URL": env.object_store_url,
        "ROLLOUT_ENGINE_URLS": ",".join(env.engine_urls),
        "ROLLOUT_ROUTER_URL": env.router_url,
        "ROLLOUT_ENGINE_AGENTS": ",".join(env.engine_agents),
        "ROLLOUT_FULL_ENGINE_URLS": ",".join(env.full_engine_urls),
        "ROLLOUT_FULL_ENGINE_AGENTS": ",".join(env.full_engine_agents),
        "WEIGHTS_ADDRESS": env.weights_address,
        "WEIGHTS_COLLECTIVE": str(env.weights_collective).lower(),
        "WEIGHT_SNAPSHOT_EVERY": str(env.snapshot_every),
        "RATCHET_CONTROL_URL": f"http://127.0.0.1:{env.port}",
        "RATCHET_TRAINER_RANKS": str(env.trainer_ranks),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "PASSIVE",  # idle threads of one process must not burn another's cores
        "TOKENIZERS_PARALLELISM": "false",
        "RATCHET_ENVIRONMENTS_DIR": str(env.environments_dir),
    }


def control_environment(env: Env) -> dict[str, str]:
    """What the control plane gets: everything, with the addresses of embedded parts filled in."""
    return data_environment(env) | {
        "PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}",
        "DEBUG": str(env.debug).lower(),
        "LOG_LEVEL": env.log_level,
        "SECRET_KEY": env.secret_key,
        "ALLOWED_HOSTS": ",".join(env.allowed_hosts),
        "PUBLIC_URL": env.public_url,
        "RATCHET_PORT": str(env.port),
        "RATCHET_ENGINE_PORT": str(env.engine_port),
        "RATCHET_ENGINE_MODEL": env.engine_model,
        "RATCHET_GATEWAY_PORT": str(env.gateway_port),
        "RATCHET_WORKER_SECRET": env.worker_secret,
        "ROLLOUT_AGENT_SECRET": env.agent_secret,
        "DATABASE_URL": env.database_url,
        "DATABASE_POOL_SIZE": str(env.database_pool_size),
        "RETENTION_DELETE": str(env.retention_delete).lower(),
        "ROLLOUT_CONCURRENCY": str(env.rollout_concurrency),
        "TORCH_THREADS": str(env.torch_threads),
        "CHECK_REPEATS": str(env.check_repeats),
        "CHECK_BAD_REPEATS": str(env.check_bad_repeats),
        "CHECKS_IN_FLIGHT": str(env.checks_in_flight),
        "OIDC_SERVER_URL": env.oidc_server_url,
        "OIDC_CLIENT_ID": env.oidc_client_id,
        "OIDC_CLIENT_SECRET": env.oidc_client_secret,
        "OIDC_NAME": env.oidc_name,
        "TRUSTED_PROXIES": ",".join(env.trusted_proxies),
        "WEBHOOK_NETWORKS": ",".join(env.webhook_networks),
    }


def environment(spec: ProcessSpec, env: Env) -> dict[str, str]:
    """The whole environment of one process of the table."""
    control = control_environment(env)
    variables = control if spec.plane is Plane.CONTROL else data_environment(env)
    if env.metrics_port:
        place = [other.name for other in (*PROCESSES, FULL_ENGINE)].index(spec.name)
        variables |= {exporter.VARIABLE: f"127.0.0.1:{env.metrics_port + place}"}
    return variables | {name: control[name] for name in spec.secrets}


def log_path(env: Env, name: str) -> Path:
    return env.home.logs / f"{name}.log"
