"""The environment contract: what the sandboxes of one task grant. Anything absent is denied."""

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

CONTRACT_VERSION = 1
WORKSPACE = "/workspace"
TEST_TOOLS = "test-tools"  # the data root of every worker that `make environments` fills with pytest, for verifiers
MAX_PORT = 65535
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\Z")


class NetworkMode(StrEnum):
    """How far a sandbox may reach, least first. Whatever is reached is reached through the worker's proxy."""

    NONE = "none"
    ALLOWLIST = "allowlist"
    FULL = "full"  # any public host; private addresses stay out of reach


class MountRole(StrEnum):
    """What a data mount is for, which decides who sees it."""

    WORKSPACE = "workspace"  # copied into the bounded workspace before the first turn, a copy of the episode's own
    INPUT = "input"  # read-only, outside the workspace, in every sandbox of the task
    VERIFIER_SECRET = "verifier_secret"  # noqa: S105  read-only, in the verifier's sandbox and in no other


class SandboxUse(StrEnum):
    """Whose sandbox it is: the network access and the mounts of a contract differ."""

    AGENT = "agent"
    VERIFIER = "verifier"


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Resources of one sandbox. Sizes in bytes, times in seconds."""

    cpu_seconds: int = 10  # of one call, over its whole process tree
    memory_bytes: int = 512 * 2**20
    num_processes: int = 64
    disk_bytes: int = 64 * 2**20
    output_bytes: int = 64 * 2**10  # of each stream of a call
    artifact_bytes: int = 32 * 2**20  # of all files that leave the workspace
    setup_timeout_seconds: float = 60.0  # from nothing to the first call
    tool_timeout_seconds: float = 10.0  # one call
    episode_timeout_seconds: float = 120.0  # all calls of an episode together
    verify_timeout_seconds: float = 20.0


@dataclass(frozen=True)
class Endpoint:
    """A host and a port that may be connected to."""

    host: str  # a lower-case name or an address, without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """`host:port`, `1.2.3.4:port` or `[2001:db8::1]:port`. Raises ValueError saying what is wrong."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= MAX_PORT:
        raise ValueError(f"{text!r} needs a port from 1 to {MAX_PORT}, as in example.org:443")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host.lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if bracketed or not _HOST_NAME.match(host) or host.replace(".", "").isdigit():
            raise ValueError(f"{text!r} has no host that could be looked up, as in example.org:443") from None
        return Endpoint(host, int(port))
    if (address.version == 6) != bracketed or "%" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets, without a zone")
    return Endpoint(str(address), int(port))


class NetworkAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one kind of sandbox may connect to; `allow` holds `host:port` and belongs to the mode allowlist."""

    mode: NetworkMode = NetworkMode.NONE
    allow: list[str] = []

    def __bool__(self) -> bool:
        return self.mode != NetworkMode.NONE


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Network of the sandboxes of a task; true when anything is granted."""

    agent: NetworkAccess = NetworkAccess()
    verifier: NetworkAccess = NetworkAccess()

    def __bool__(self) -> bool:
        return bool(self.agent or self.verifier)


class Mount(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Data of the host inside a sandbox.

    `source` is `root/folder/…`: the name of one of the worker's data roots and a path below it. `path` is where it
    appears: for role workspace at or below /workspace, for the others outside it. `mode` is ro, and rw exactly for
    the workspace, where it is a copy: nothing of the host is ever writable from inside.
    """

    path: str
    source: str
    role: MountRole = MountRole.INPUT
    mode: str = "ro"

    @property
    def root(self) -> str:
        return self.source.partition("/")[0]

    @property
    def folder(self) -> str:
        return self.source.partition("/")[2]


class EnvironmentContract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an episode's sandbox and its verifier's sandbox grant.

    `network` may be given as false (denied to both) or true (full for the agent), as contracts were written before
    they told the two apart.
    """

    use: ClassVar[SandboxUse] = SandboxUse.AGENT  # of the sandbox that is made from it

    version: int = CONTRACT_VERSION
    source_format: str = ""  # where the task came from, e.g. harbor, verifiers, jsonl
    licence: str = ""  # SPDX identifier of the task's data
    image: str = ""  # container image by digest, name@sha256:…; only the container backend has images
    network: Network | bool = Network()
    mounts: list[Mount] = []
    files: dict[str, str] = {}  # path below /workspace -> text content, written before the first turn
    environment: dict[str, str] = {}  # extra variables inside the sandbox
    links: dict[str, str] = {}  # absolute path -> folder below /workspace that it leads to, "." for /workspace itself
    limits: Limits = Limits()
    artifacts: list[str] = msgspec.field(default_factory=lambda: ["**"])  # globs of the files that may leave
    decoys: bool | None = None  # watched answer files; None: wherever a policy with files or a shell is tested
    determinism_runs: int = 1  # times the import check repeats each verdict
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.network, bool):
            agent = NetworkAccess(mode=NetworkMode.FULL if self.network else NetworkMode.NONE)
            msgspec.structs.force_setattr(self, "network", Network(agent=agent))

    def access(self, use: SandboxUse | None = None) -> NetworkAccess:
        """Network access of one kind of sandbox; without `use`, of the one that is made from this contract."""
        assert isinstance(self.network, Network)
        return self.network.verifier if (use or self.use) is SandboxUse.VERIFIER else self.network.agent

    def visible_mounts(self, use: SandboxUse | None = None) -> list[Mount]:
        """Mounts of one kind of sandbox: a verifier's secrets are never there while the agent runs."""
        hidden = MountRole.WORKSPACE if (use or self.use) is SandboxUse.VERIFIER else MountRole.VERIFIER_SECRET
        return [mount for mount in self.mounts if mount.role is not hidden]

    def for_verifier(self, limits: Limits | None = None) -> "VerifierContract":
        """What the verifier's own sandbox gets: its network, its mounts, no files or variables of the episode."""
        return VerifierContract(
            network=self.network, mounts=self.mounts, image=self.image, limits=limits or self.limits, seed=self.seed
        )

    @property
    def contract_hash(self) -> str:
        """SHA-256 over what differs from the defaults and the version: a field added later changes no old hash."""
        content = [self.version, differences(self)]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


class VerifierContract(EnvironmentContract, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contract of a verifier's sandbox. No stored task decodes to it: only a verifier makes one."""

    use: ClassVar[SandboxUse] = SandboxUse.VERIFIER

    programs: dict[str, str] = {}  # absolute path -> text of an executable file that nothing inside can change


def differences(struct: msgspec.Struct) -> dict[str, Any]:
    """Fields of a struct that are not at their default, as plain data, all the way down."""
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if field.required or value != default:
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return differences(value)
    return [_plain(item) for item in value] if isinstance(value, list) else msgspec.to_builtins(value)
