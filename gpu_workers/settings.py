"""Settings of every worker process, read from the environment once and refused at start when wrong."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from gpu_workers.contracts.environment import TEST_TOOLS, MountRole
from gpu_workers.contracts.store import ObjectStore
from gpu_workers.sandboxes.backends import BackendChoice, load_choice
from gpu_workers.sandboxes.host import DataRoot, HostPolicy, load_host_policy
from gpu_workers.sessions.limits import SessionLimits

BROKER_SCHEMES = frozenset({"redis", "rediss", "redis+socket", "amqp", "amqps", "memory"})
LOCAL_REDIS = "redis://127.0.0.1:6379/0"


class SettingsError(ValueError):
    """An environment variable that cannot be used; the message starts with its name."""


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker may know: broker, object store, engines and folders; never a database."""

    broker_url: str
    redis_url: str  # channel-change notices; empty when there is no Redis
    store: ObjectStore
    home: Path
    models_dir: Path
    engine_urls: tuple[str, ...]
    router_url: str  # sglang-router in front of those engines; empty: they are asked directly
    control_url: str
    worker_secret: str
    environments_dir: Path  # virtual environments of third-party environments, one each
    engine_agents: tuple[str, ...] = ()  # that keep checkpoints on the engines' hosts, one for each; empty: this host
    full_engine_urls: tuple[str, ...] = ()  # that runs of every weight take turns on
    full_engine_agents: tuple[str, ...] = ()  # as engine_agents, of those
    agent_secret: str = field(default="", repr=False)
    snapshot_every: int = 10  # versions until one is published whole
    address: str = "127.0.0.1"  # of this host, as the engines' hosts reach it: where it sends weights from
    collective: bool = False  # engines can form a process group with this host
    judge_url: str = ""  # base URL of an OpenAI-compatible API for verifiers of kind judge; empty: there is none
    judge_key: str = field(default="", repr=False)
    sandbox: HostPolicy = field(default_factory=HostPolicy)  # the most that this host grants a task
    sandbox_backend: BackendChoice = field(default_factory=BackendChoice)
    sessions: SessionLimits = field(default_factory=SessionLimits)  # of the gateway's session server

    @property
    def cache_dir(self) -> Path:
        """Local copies of remote objects; may be deleted at any time."""
        return self.home / "cache"

    @property
    def agents(self) -> dict[str, str]:
        """Engine URL -> URL of the agent on its host; empty: engines read what this host writes."""
        shared = zip(self.engine_urls, self.engine_agents, strict=bool(self.engine_agents))
        full = zip(self.full_engine_urls, self.full_engine_agents, strict=bool(self.full_engine_agents))
        return dict(shared) | dict(full)

    def require_engines(self) -> tuple[str, ...]:
        """Engine URLs, or an error that says which variable to set."""
        if not self.engine_urls:
            raise SettingsError("ROLLOUT_ENGINE_URLS: is empty; set it to the engines' base URLs, comma separated")
        return self.engine_urls


def load_settings(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """Read the settings. Raises SettingsError naming the variable."""
    env = os.environ if environ is None else environ
    home = Path(env.get("RATCHET_HOME") or ".ratchet").expanduser().resolve()
    environments_dir = Path(env.get("RATCHET_ENVIRONMENTS_DIR") or home / "environments").expanduser().resolve()
    redis_url = _url(env, "REDIS_URL", "", frozenset({"redis", "rediss", "unix"}))
    engine_urls = _urls(env, "ROLLOUT_ENGINE_URLS")
    if not engine_urls and env.get("RATCHET_ENGINE_PORT"):
        engine_urls = (_local_url(env, "RATCHET_ENGINE_PORT", 0),)
    full_engine_urls = _urls(env, "ROLLOUT_FULL_ENGINE_URLS")
    return WorkerSettings(
        broker_url=_url(env, "CELERY_BROKER_URL", redis_url or LOCAL_REDIS, BROKER_SCHEMES),
        redis_url=redis_url,
        store=_store(env.get("OBJECT_STORE_URL") or f"file://{home / 'objects'}"),
        home=home,
        models_dir=home / "models",
        engine_urls=engine_urls,
        engine_agents=_agents(env, "ROLLOUT_ENGINE_AGENTS", "ROLLOUT_ENGINE_URLS", len(engine_urls)),
        full_engine_urls=full_engine_urls,
        full_engine_agents=_agents(
            env, "ROLLOUT_FULL_ENGINE_AGENTS", "ROLLOUT_FULL_ENGINE_URLS", len(full_engine_urls)
        ),
        agent_secret=env.get("ROLLOUT_AGENT_SECRET", ""),
        snapshot_every=_count(env, "WEIGHT_SNAPSHOT_EVERY", 10),
        address=env.get("WEIGHTS_ADDRESS") or "127.0.0.1",
        collective=_flag(env, "WEIGHTS_COLLECTIVE"),
        router_url=_url(env, "ROLLOUT_ROUTER_URL", "", frozenset({"http", "https"})),
        control_url=_url(
            env, "RATCHET_CONTROL_URL", _local_url(env, "RATCHET_PORT", 8000), frozenset({"http", "https"})
        ),
        worker_secret=env.get("RATCHET_WORKER_SECRET", ""),
        environments_dir=environments_dir,
        judge_url=_url(env, "RATCHET_JUDGE_URL", "", frozenset({"http", "https"})),
        judge_key=env.get("RATCHET_JUDGE_KEY", ""),
        sandbox=_sandbox(env, environments_dir),
        sandbox_backend=_sandbox_backend(env),
        sessions=_sessions(env),
    )


@lru_cache(maxsize=1)
def settings() -> WorkerSettings:
    """The settings of this process."""
    return load_settings()


def _sandbox(env: Mapping[str, str], environments_dir: Path) -> HostPolicy:
    try:
        host = load_host_policy(env)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    # pytest for the scripts of task folders, which no agent's sandbox may mount.
    tools = {TEST_TOOLS: DataRoot(environments_dir / TEST_TOOLS, frozenset({MountRole.VERIFIER_SECRET}))}
    return replace(host, data_roots={**tools, **host.data_roots})


def _store(url: str) -> ObjectStore:
    try:
        return ObjectStore(url)
    except (ValueError, ImportError) as error:
        raise SettingsError(
            f"OBJECT_STORE_URL: {url!r} cannot be opened ({error}); use file:///folder or s3://bucket/prefix"
        ) from error


def _urls(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    urls = [part.strip().rstrip("/") for part in env.get(name, "").split(",") if part.strip()]
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise SettingsError(f"{name}: {url!r} is not an http(s) URL")
    return tuple(urls)


def _agents(env: Mapping[str, str], name: str, engines: str, num_engines: int) -> tuple[str, ...]:
    """One for each engine, in their order; engines of one host share theirs."""
    urls = _urls(env, name)
    if urls and len(urls) != num_engines:
        raise SettingsError(
            f"{name}: names {len(urls)} agents for {num_engines} engines; name one for each of {engines}, in that order"
        )
    return urls


def _local_url(env: Mapping[str, str], name: str, default: int) -> str:
    text = env.get(name) or str(default)
    if not text.isdigit() or not 0 <= int(text) < 65536:
        raise SettingsError(f"{name}: {text!r} is not a port number")
    return f"http://127.0.0.1:{text}"


def _url(env: Mapping[str, str], name: str, default: str, schemes: frozenset[str]) -> str:
    url = (env.get(name) or default).rstrip("/")
    if url and urlsplit(url).scheme not in schemes:
        raise SettingsError(f"{name}: {url!r} must start with one of {', '.join(sorted(schemes))}")
    return url


def _sessions(env: Mapping[str, str]) -> SessionLimits:
    default = SessionLimits()
    return SessionLimits(
        max_sessions=_count(env, "RATCHET_SESSIONS_MAX", default.max_sessions),
        max_session_tokens=_count(env, "RATCHET_SESSION_TOKENS", default.max_session_tokens),
        max_tokens=_count(env, "RATCHET_SESSIONS_TOTAL_TOKENS", default.max_tokens),
        idle_seconds=_count(env, "RATCHET_SESSION_IDLE_SECONDS", int(default.idle_seconds)),
    )


def _count(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isdigit() or not 0 < int(text) < 2**40:
        raise SettingsError(f"{name}: {text!r} is not a whole number above 0")
    return int(text)


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = (env.get(name) or "false").lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def _sandbox_backend(env: Mapping[str, str]) -> BackendChoice:
    try:
        return load_choice(env)
    except ValueError as error:
        raise SettingsError(str(error)) from error
