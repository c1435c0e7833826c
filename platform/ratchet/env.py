"""Every environment variable of the platform: read once, validated, frozen; errors name the variable."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import environ

from ratchet.services.home import MAX_SOCKET_PATH, Home, broker_url

ROOT = Path(__file__).resolve().parents[2]


class Mode(StrEnum):
    DEVELOPMENT = "development"
    PRODUCTION = "production"
    TEST = "test"


class EnvError(ValueError):
    """Variables that cannot be used; one line per problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("The environment cannot be used:\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Env:
    """The platform's configuration. `*_embedded`: the variable was not set, so the supervisor starts that part."""

    mode: Mode
    debug: bool
    log_level: str
    home: Home
    secret_key: str
    allowed_hosts: tuple[str, ...]
    public_url: str
    port: int
    database_url: str
    database_owner_url: str  # owns the tables, for migrations; where it is the same, the audit trail is less safe
    database_embedded: bool
    database_pool_size: int
    redis_url: str
    redis_embedded: bool
    celery_broker_url: str
    object_store_url: str
    object_store_embedded: bool
    engine_urls: tuple[str, ...]
    router_url: str  # sglang-router in front of them; empty: none
    engine_agents: tuple[str, ...]  # keep the checkpoints on the engines' hosts, one for each; empty: none do
    full_engine_urls: tuple[str, ...]  # runs of every weight take turns on them; empty: such runs are refused
    full_engine_agents: tuple[str, ...]
    full_engine_embedded: bool
    full_engine_port: int
    agent_secret: str
    weights_address: str  # of the fleet worker's host, as the engines' hosts reach it
    weights_collective: bool  # engines can form a process group with the fleet worker's host
    snapshot_every: int  # versions of a run that trains all weights until one is published whole
    engine_embedded: bool
    engine_port: int
    engine_model: str
    gateway_port: int
    retention_delete: bool
    metrics_port: int  # first of the ports on loopback where processes answer Prometheus; 0: none does
    worker_secret: str
    rollout_concurrency: int
    torch_threads: int
    trainer_ranks: int
    check_repeats: int
    check_bad_repeats: int
    checks_in_flight: int
    environments_dir: Path
    oidc_server_url: str  # empty: sign-in by password only
    oidc_client_id: str
    oidc_client_secret: str
    oidc_name: str
    trusted_proxies: tuple[str, ...]  # whose X-Forwarded-For is believed; none: nobody's
    webhook_networks: tuple[str, ...]  # private networks that webhooks may be sent to

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"


# Every variable the platform reads; deploy/ may set no other (a test compares).
VARIABLES = frozenset(
    {
        "RATCHET_HOME", "RATCHET_ENV", "DEBUG", "LOG_LEVEL", "SECRET_KEY", "ALLOWED_HOSTS", "PUBLIC_URL",
        "DATABASE_URL", "DATABASE_OWNER_URL", "DATABASE_POOL_SIZE", "REDIS_URL", "CELERY_BROKER_URL",
        "OBJECT_STORE_URL", "RATCHET_METRICS_PORT", "RETENTION_DELETE",
        "RATCHET_ENGINE_PORT", "RATCHET_ENGINE_MODEL", "RATCHET_GATEWAY_PORT", "RATCHET_WORKER_SECRET",
        "ROLLOUT_CONCURRENCY", "TORCH_THREADS", "RATCHET_TRAINER_RANKS", "RATCHET_PORT", "ROLLOUT_ENGINE_URLS",
        "ROLLOUT_FULL_ENGINE_URLS", "ROLLOUT_FULL_ENGINE_AGENTS", "RATCHET_FULL_ENGINE", "RATCHET_FULL_ENGINE_PORT",
        "ROLLOUT_ROUTER_URL", "ROLLOUT_ENGINE_AGENTS", "ROLLOUT_AGENT_SECRET", "WEIGHT_SNAPSHOT_EVERY",
        "WEIGHTS_ADDRESS", "WEIGHTS_COLLECTIVE",
        "CHECK_REPEATS", "CHECK_BAD_REPEATS", "CHECKS_IN_FLIGHT", "RATCHET_ENVIRONMENTS_DIR",
        "OIDC_SERVER_URL", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET", "OIDC_NAME", "WEBHOOK_NETWORKS",
        "TRUSTED_PROXIES",
    }
)  # fmt: skip

BASE_MODELS = ("smollm2-135m-instruct", "tiny")
_SHORT_NAMES = {"smollm2": BASE_MODELS[0]}
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class _Reader:
    """Reads typed values and collects what is wrong, so that one start names every problem."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.problems: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, "").strip() or default

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in choices:
            self.problems.append(f"{name}={value!r} is unknown: set it to one of {', '.join(choices)}.")
            return default
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name).lower()
        if value in ("", "1", "true", "yes", "on", "0", "false", "no", "off"):
            return default if value == "" else value in ("1", "true", "yes", "on")
        self.problems.append(f"{name}={value!r} is no truth value: set it to true or false.")
        return default

    def number(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name)
        if not value:
            return default
        if not value.isdecimal() or not low <= int(value) <= high:
            self.problems.append(f"{name}={value!r} is no whole number between {low} and {high}: correct or unset it.")
            return default
        return int(value)

    def url(self, name: str, schemes: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if not value:
            return default
        if self._is_url(name, value, schemes):
            return value
        return default

    def urls(self, name: str, schemes: tuple[str, ...]) -> tuple[str, ...]:
        values = [part.strip().rstrip("/") for part in self.text(name).split(",") if part.strip()]
        return tuple(value for value in values if self._is_url(name, value, schemes))

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def _is_url(self, name: str, value: str, schemes: tuple[str, ...]) -> bool:
        parts = urlsplit(value)
        example = f"{schemes[0]}://…"
        if parts.scheme not in schemes:
            self.problems.append(f"{name} has the scheme {parts.scheme!r}: use {', '.join(schemes)} ({example}).")
            return False
        if not (parts.netloc or parts.path.strip("/") or parts.query):
            self.problems.append(f"{name} names no host or path: set it to {example}, or unset it.")
            return False
        try:
            _ = parts.port
        except ValueError:
            self.problems.append(f"{name} has a port that is no number between 0 and 65535: correct it.")
            return False
        return True


def load_env(values: Mapping[str, str] | None = None, *, root: Path = ROOT) -> Env:
    """Read and validate the environment, with `.env` of the root below it outside tests. Raises EnvError."""
    if values is None:
        values = os.environ
        if values.get("RATCHET_ENV") != Mode.TEST:
            _read_file(root / ".env")
    read = _Reader(values)
    mode = Mode(read.choice("RATCHET_ENV", tuple(Mode), Mode.DEVELOPMENT))
    home = _home(read, root)
    port = read.number("RATCHET_PORT", 8000, 1, 65535)
    engine_port = read.number("RATCHET_ENGINE_PORT", 8010, 1, 65535)
    gateway_port = read.number("RATCHET_GATEWAY_PORT", 8020, 1, 65535)
    ports = {"RATCHET_PORT": port, "RATCHET_ENGINE_PORT": engine_port, "RATCHET_GATEWAY_PORT": gateway_port}
    full_engine_port = read.number("RATCHET_FULL_ENGINE_PORT", 8011, 1, 65535)
    full_engine_urls = read.urls("ROLLOUT_FULL_ENGINE_URLS", ("http", "https"))
    full_engine_embedded = read.flag("RATCHET_FULL_ENGINE", False) and not full_engine_urls
    if full_engine_embedded:
        full_engine_urls = (f"http://127.0.0.1:{full_engine_port}",)
        ports["RATCHET_FULL_ENGINE_PORT"] = full_engine_port
    _check_ports(read, ports)
    redis_url = read.url("REDIS_URL", ("redis", "rediss", "unix"), home.valkey_url)
    engine_urls = read.urls("ROLLOUT_ENGINE_URLS", ("http", "https"))
    env = Env(
        mode=mode,
        debug=read.flag("DEBUG", False),
        log_level=read.choice("LOG_LEVEL", _LOG_LEVELS, "INFO"),
        home=home,
        secret_key=_secret(read, "SECRET_KEY", mode, home, least=50),
        allowed_hosts=_allowed_hosts(read, mode),
        public_url=read.url("PUBLIC_URL", ("http", "https"), f"http://127.0.0.1:{port}").rstrip("/"),
        port=port,
        database_url=read.url("DATABASE_URL", ("postgres", "postgresql"), home.postgres_url),
        database_owner_url=read.url("DATABASE_OWNER_URL", ("postgres", "postgresql"), "")
        or read.text("DATABASE_URL")
        or home.postgres_owner_url,
        database_embedded=not read.text("DATABASE_URL"),
        database_pool_size=read.number("DATABASE_POOL_SIZE", 8, 1, 200),
        redis_url=redis_url,
        redis_embedded=not read.text("REDIS_URL"),
        celery_broker_url=read.url(
            "CELERY_BROKER_URL", ("redis", "rediss", "redis+socket", "amqp", "amqps", "memory"), broker_url(redis_url)
        ),
        object_store_url=read.url("OBJECT_STORE_URL", ("file", "s3", "gs", "az"), home.objects_url).rstrip("/"),
        object_store_embedded=not read.text("OBJECT_STORE_URL"),
        engine_urls=engine_urls or (f"http://127.0.0.1:{engine_port}",),
        router_url=read.url("ROLLOUT_ROUTER_URL", ("http", "https"), "").rstrip("/"),
        engine_agents=read.urls("ROLLOUT_ENGINE_AGENTS", ("http", "https")),
        full_engine_urls=full_engine_urls,
        full_engine_agents=read.urls("ROLLOUT_FULL_ENGINE_AGENTS", ("http", "https")),
        full_engine_embedded=full_engine_embedded,
        full_engine_port=full_engine_port,
        agent_secret=read.text("ROLLOUT_AGENT_SECRET"),
        weights_address=read.text("WEIGHTS_ADDRESS"),
        weights_collective=read.flag("WEIGHTS_COLLECTIVE", False),
        snapshot_every=read.number("WEIGHT_SNAPSHOT_EVERY", 10, 1, 1000),
        engine_embedded=not read.text("ROLLOUT_ENGINE_URLS"),
        engine_port=engine_port,
        engine_model=_engine_model(read),
        gateway_port=gateway_port,
        retention_delete=read.flag("RETENTION_DELETE", False),
        metrics_port=read.number("RATCHET_METRICS_PORT", 8100, 0, 65000),
        worker_secret=_secret(read, "RATCHET_WORKER_SECRET", mode, home, least=32),
        rollout_concurrency=read.number("ROLLOUT_CONCURRENCY", 48, 1, 512),
        torch_threads=read.number("TORCH_THREADS", 1, 1, 256),
        trainer_ranks=read.number("RATCHET_TRAINER_RANKS", 1, 1, 1024),
        check_repeats=read.number("CHECK_REPEATS", 3, 1, 20),
        check_bad_repeats=read.number("CHECK_BAD_REPEATS", 1, 1, 20),
        checks_in_flight=read.number("CHECKS_IN_FLIGHT", 8, 1, 10_000),
        environments_dir=Path(read.text("RATCHET_ENVIRONMENTS_DIR") or home.root / "environments").resolve(),
        oidc_server_url=read.url("OIDC_SERVER_URL", ("https", "http"), "").rstrip("/"),
        oidc_client_id=read.text("OIDC_CLIENT_ID"),
        oidc_client_secret=read.text("OIDC_CLIENT_SECRET"),
        oidc_name=read.text("OIDC_NAME", "single sign-on"),
        trusted_proxies=_networks(read, "TRUSTED_PROXIES"),
        webhook_networks=_networks(read, "WEBHOOK_NETWORKS"),
    )
    _check_oidc(read, env)
    _check_agents(read, env)
    _check_full_engines(read, env)
    if read.problems:
        raise EnvError(read.problems)
    return env


def _check_agents(read: _Reader, env: Env) -> None:
    for fleet, agents, urls in (
        ("ROLLOUT_ENGINE", env.engine_agents, env.engine_urls),
        ("ROLLOUT_FULL_ENGINE", env.full_engine_agents, env.full_engine_urls),
    ):
        if agents and len(agents) != len(urls):
            read.problems.append(
                f"{fleet}_AGENTS names {len(agents)} agents for {len(urls)} engines: name one for each of "
                f"{fleet}_URLS, in that order (engines of one host share theirs)."
            )
    if (env.engine_agents or env.full_engine_agents) and len(env.agent_secret) < 32:
        read.problems.append("ROLLOUT_AGENT_SECRET is shorter than 32 characters: set it as on the engines' hosts.")


def _check_full_engines(read: _Reader, env: Env) -> None:
    """Replacing the weights of an engine that adapters are served from would change every one of them."""
    shared = sorted(set(env.full_engine_urls) & set(env.engine_urls))
    if shared and not env.full_engine_embedded:  # ports are compared elsewhere
        read.problems.append(
            f"ROLLOUT_FULL_ENGINE_URLS names {', '.join(shared)}, which ROLLOUT_ENGINE_URLS names too: engines whose "
            "weights are replaced cannot serve adapters meanwhile. Give each fleet engines of its own."
        )


def _read_file(path: Path) -> None:
    if path.exists():
        environ.Env.read_env(path, overwrite=False)


def use_settings() -> None:
    """Point Django at the settings of RATCHET_ENV, unless DJANGO_SETTINGS_MODULE names others."""
    if "DJANGO_SETTINGS_MODULE" not in os.environ:
        os.environ["DJANGO_SETTINGS_MODULE"] = f"ratchet.settings.{load_env().mode}"


def missing_database() -> str:
    """What to do when the embedded PostgreSQL is wanted and does not run; empty when there is a database."""
    env = load_env()
    if not env.database_embedded or (env.home.sockets / ".s.PGSQL.5432").exists():
        return ""
    return f"Ratchet is not running on {env.home.root}: start it with `make demo` or `make dev`, or set DATABASE_URL."


def _home(read: _Reader, root: Path) -> Home:
    path = Path(read.text("RATCHET_HOME", str(root / ".ratchet"))).expanduser()
    if not path.is_absolute():
        path = Path.cwd() / path
    path = Path(os.path.normpath(path))
    if path.exists() and not path.is_dir():
        read.problems.append(f"RATCHET_HOME={path} is a file: name a folder.")
    home = Home(path)
    if len(os.fsencode(home.sockets / ".s.PGSQL.5432.lock")) > MAX_SOCKET_PATH:
        read.problems.append(f"RATCHET_HOME={path} and TMPDIR are too long for Unix sockets: name a shorter folder.")
    if any(mark in str(path) for mark in "?#%"):
        read.problems.append(f"RATCHET_HOME={path} contains one of ? # %, which URLs cannot carry: rename the folder.")
    return home


def _engine_model(read: _Reader) -> str:
    """A base model that `gpu_workers.models` prepares, or the folder of one that is there."""
    value = read.text("RATCHET_ENGINE_MODEL", BASE_MODELS[0])
    if value in _SHORT_NAMES:
        return _SHORT_NAMES[value]
    if "/" not in value:
        return read.choice("RATCHET_ENGINE_MODEL", BASE_MODELS, BASE_MODELS[0])
    folder = Path(value).expanduser().absolute()
    if not (folder / "config.json").is_file():
        read.problems.append(
            f"RATCHET_ENGINE_MODEL={value} is no model folder (it has no config.json): "
            f"name a Hugging Face folder, or one of {', '.join(BASE_MODELS)}."
        )
    return str(folder)


def _check_ports(read: _Reader, ports: Mapping[str, int]) -> None:
    seen: dict[int, str] = {}
    for name, port in ports.items():
        if port in seen:
            read.problems.append(f"{name} and {seen[port]} are both {port}: give each a port of its own.")
        seen[port] = name


def _check_oidc(read: _Reader, env: Env) -> None:
    given = {"OIDC_CLIENT_ID": env.oidc_client_id, "OIDC_CLIENT_SECRET": env.oidc_client_secret}
    if env.oidc_server_url:
        missing = [name for name, value in given.items() if not value]
        read.problems += [f"{name} is not set, but OIDC_SERVER_URL is: set both." for name in missing]
        if env.mode is Mode.PRODUCTION and not env.oidc_server_url.startswith("https://"):
            read.problems.append("OIDC_SERVER_URL must begin with https:// in production.")


def _networks(read: _Reader, name: str) -> tuple[str, ...]:
    values = read.words(name)
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            read.problems.append(f"{name}: {value!r} is no network such as 10.1.0.0/16 ({error}).")
    return values


def _allowed_hosts(read: _Reader, mode: Mode) -> tuple[str, ...]:
    hosts = read.words("ALLOWED_HOSTS")
    if mode is Mode.PRODUCTION and (not hosts or "*" in hosts):
        read.problems.append("ALLOWED_HOSTS must name the hosts of production (comma-separated, no '*').")
    return hosts or ("localhost", "127.0.0.1", "[::1]", "testserver")


def _secret(read: _Reader, name: str, mode: Mode, home: Home, *, least: int) -> str:
    """A secret of the environment; outside production a random one is kept in the home."""
    value = read.text(name)
    if value and len(value) < least:
        read.problems.append(f"{name} is shorter than {least} characters: make one with `openssl rand -base64 48`.")
    if value:
        return value
    if mode is Mode.PRODUCTION:
        read.problems.append(f"{name} is not set: production needs its own (`openssl rand -base64 48`).")
        return ""
    if mode is Mode.TEST:
        return f"test-{name}-".ljust(least, "x")
    if read.problems:  # do not make a folder that was refused
        return ""
    try:
        return home.secret(name.lower())
    except OSError as error:
        read.problems.append(
            f"RATCHET_HOME={home.root} cannot keep a secret ({error.strerror}): set it to a folder that user "
            f"{os.geteuid()} may write, on a disk with space."
        )
        return ""
