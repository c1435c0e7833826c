"""The configuration of a Harbor task (task.toml): the fields that matter here, and what its defaults become."""

import tomllib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpu_workers.contracts.environment import Limits

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
AGENT_SECONDS = 600.0  # where the task states none
MAX_AGENT_SECONDS = 3600.0
MAX_CALL_SECONDS = 120.0
MAX_MEMORY_BYTES = 2 * 2**30
MAX_DISK_BYTES = 512 * 2**20  # the workspace lies in memory
DEFAULT_DISK_BYTES = 256 * 2**20


class ConfigProblem(Exception):
    """Why a task cannot be imported; the message names the field."""


class _Phase(msgspec.Struct, frozen=True, kw_only=True):
    timeout_sec: float | None = None
    network_mode: str | None = None
    user: str | int | None = None


class _Verifier(_Phase, frozen=True, kw_only=True):
    env: dict[str, str] = {}
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = []


class _Environment(msgspec.Struct, frozen=True, kw_only=True):
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = None
    memory_mb: int | None = None
    memory: str | None = None
    storage_mb: int | None = None
    storage: str | None = None
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: list[Any] = []
    healthcheck: Any = None
    env: dict[str, str] = {}
    workdir: str | None = None
    network_mode: str | None = None
    allow_internet: bool | None = None


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    difficulty: str = ""
    category: str = ""
    tags: list[str] = []


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: str = ""
    version: str = ""
    metadata: _Metadata = _Metadata()
    verifier: _Verifier = _Verifier()
    agent: _Phase = _Phase()
    environment: _Environment = _Environment()
    steps: list[Any] = []


@dataclass
class HarborConfig:
    """A task.toml as it is followed here. `notes` say what was changed, `field: what`."""

    limits: Limits
    environment: dict[str, str]
    verifier_environment: dict[str, str]
    workdir: str
    tags: list[str]
    notes: list[tuple[str, str]] = field(default_factory=list)


def read_config(text: str) -> HarborConfig:
    """Raises ConfigProblem for what cannot be followed."""
    try:
        data = tomllib.loads(text)
        found = msgspec.convert(data, _File)
    except tomllib.TOMLDecodeError as error:
        raise ConfigProblem(f"task.toml is no TOML: {error}") from error
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise ConfigProblem(f"task.toml {path.rstrip('`').strip('.')}: {message}") from error
    version = found.schema_version or found.version
    if not version:
        raise ConfigProblem("task.toml states no version")
    if version not in SCHEMAS:
        raise ConfigProblem(f"task.toml version {version!r} is unknown; known are {', '.join(SCHEMAS)}")
    _refuse(found)
    config = HarborConfig(
        limits=Limits(),
        environment=dict(found.environment.env),
        verifier_environment=dict(found.verifier.env),
        workdir=found.environment.workdir or "",
        tags=[tag for tag in (*found.metadata.tags, found.metadata.category, found.metadata.difficulty) if tag],
    )
    for where, values in (("environment.env", config.environment), ("verifier.env", config.verifier_environment)):
        if any("${" in value for value in values.values()):
            raise ConfigProblem(f"task.toml {where}: asks for variables of the host, which no sandbox gets")
    config.limits = _limits(found, config.notes)
    _network(found, config.notes)
    return config


def _refuse(found: _File) -> None:
    asked = {
        "steps": bool(found.steps),
        "environment.os": found.environment.os.lower() != "linux",
        "environment.gpus": bool(found.environment.gpus),
        "environment.tpu": found.environment.tpu is not None,
        "environment.mcp_servers": bool(found.environment.mcp_servers),
        "environment.healthcheck": found.environment.healthcheck is not None,
        "verifier.environment": found.verifier.environment is not None,
        "verifier.collect": bool(found.verifier.collect),
    }
    reasons = {
        "steps": "tasks of several steps are not supported",
        "environment.os": "only Linux is",
        "environment.healthcheck": "a service would have to run beside the policy",
        "verifier.environment": "the verifier wants an image of its own",
    }
    for name, given in asked.items():
        if given:
            raise ConfigProblem(f"task.toml {name}: {reasons.get(name, 'is not to be had in a sandbox here')}")


def _network(found: _File, notes: list[tuple[str, str]]) -> None:
    """Harbor's defaults are public and shared: here they are denied and separate, and that is said."""
    stated = found.environment.network_mode or ""
    if not stated and found.environment.allow_internet is not None:
        stated = "public" if found.environment.allow_internet else "no-network"
    modes = {"environment": stated, "agent": found.agent.network_mode, "verifier": found.verifier.network_mode}
    for name, mode in modes.items():
        if mode is not None and mode != "no-network":
            given = f"{mode!r}" if mode else "Harbor's default, public,"
            notes.append((f"{name}.network_mode", f"{given} is imported as denied"))
    if found.verifier.environment_mode != "separate":
        given = "'shared'" if found.verifier.environment_mode else "Harbor's default, shared,"
        message = f"{given} is imported as separate: tests run in a sandbox of their own"
        notes.append(("verifier.environment_mode", message))
    for name, phase in (("agent", found.agent), ("verifier", found.verifier)):
        if phase.user is not None:
            message = f"{phase.user!r} is not followed: everything runs as one user without rights"
            notes.append((f"{name}.user", message))


def _limits(found: _File, notes: list[tuple[str, str]]) -> Limits:
    agent = _positive(found.agent.timeout_sec, "agent.timeout_sec") or AGENT_SECONDS
    verify = _positive(found.verifier.timeout_sec, "verifier.timeout_sec") or AGENT_SECONDS
    memory = _bytes(found.environment.memory_mb, found.environment.memory, "environment.memory")
    disk = _bytes(found.environment.storage_mb, found.environment.storage, "environment.storage")
    limits = Limits(
        cpu_seconds=int(min(agent, MAX_AGENT_SECONDS)),
        memory_bytes=min(memory or MAX_MEMORY_BYTES // 4, MAX_MEMORY_BYTES),
        disk_bytes=min(disk or DEFAULT_DISK_BYTES, MAX_DISK_BYTES),
        num_processes=256,
        tool_timeout_seconds=min(agent, MAX_CALL_SECONDS),
        episode_timeout_seconds=min(agent, MAX_AGENT_SECONDS),
        verify_timeout_seconds=min(verify, MAX_AGENT_SECONDS),
    )
    for name, asked, given in (
        ("agent.timeout_sec", agent, limits.episode_timeout_seconds),
        ("verifier.timeout_sec", verify, limits.verify_timeout_seconds),
        ("environment.memory_mb", memory, limits.memory_bytes),
        ("environment.storage_mb", disk, limits.disk_bytes),
    ):
        if asked and asked > given:
            unit = "s" if name.endswith("_sec") else "MiB"
            shown = given if unit == "s" else given // 2**20
            notes.append((name, f"is cut to {shown:g} {unit}"))
    if found.environment.cpus is not None:
        notes.append(("environment.cpus", "is not followed: CPU time is limited, cores are not"))
    return limits


def _positive(value: float | None, name: str) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise ConfigProblem(f"task.toml {name}: {value} must be positive")
    return value


def _bytes(megabytes: int | None, text: str | None, name: str) -> int:
    if megabytes is not None:
        if megabytes <= 0:
            raise ConfigProblem(f"task.toml {name}_mb: {megabytes} must be positive")
        return megabytes * 2**20
    if not text:
        return 0
    units = {"G": 2**30, "M": 2**20, "K": 2**10}
    number, unit = text.strip().upper()[:-1], text.strip().upper()[-1:]
    if unit not in units or not number.replace(".", "", 1).isdigit() or not float(number):
        raise ConfigProblem(f"task.toml {name}: {text!r} is no size, as 2G is")
    return int(float(number) * units[unit])
