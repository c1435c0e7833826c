"""What this host grants at most: networks, data roots, sizes. Whoever asks for more is refused before anything runs."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from gpu_workers.contracts.environment import (
    TEST_TOOLS,
    Endpoint,
    EnvironmentContract,
    Mount,
    MountRole,
    NetworkMode,
    SandboxUse,
    parse_endpoint,
)
from gpu_workers.sandboxes.reach import Range

_ORDER = list(NetworkMode)  # least first


class HostRefusal(ValueError):
    """A contract that is valid but asks for more than this host allows; starts with the field's path."""


@dataclass(frozen=True)
class DataRoot:
    """A folder of the host whose subfolders contracts may name, for the roles given."""

    path: Path
    roles: frozenset[MountRole]


@dataclass(frozen=True)
class HostPolicy:
    """The most that this host grants any contract. Sizes in bytes, times in seconds."""

    network: NetworkMode = NetworkMode.NONE
    network_hosts: frozenset[Endpoint] = frozenset()  # with allowlist: no contract may name others
    private_hosts: frozenset[Endpoint] = frozenset()  # may be reached although their addresses are private
    network_deny: tuple[Range, ...] = ()  # ranges that no contract reaches, as the site's own public ones
    data_roots: Mapping[str, DataRoot] = field(default_factory=dict)
    max_memory_bytes: int = field(default_factory=lambda: _physical_memory())
    max_disk_bytes: int = field(default_factory=lambda: _physical_memory() // 2)  # a tmpfs: it is memory too
    max_processes: int = 4096
    max_seconds: float = 86_400.0
    cgroup: Path | None = None  # a delegated cgroup v2 folder; None: look for one

    def check(self, contract: EnvironmentContract) -> None:
        """Raise HostRefusal naming the first field that asks for too much."""
        limits = contract.limits
        ceilings = {
            "memory_bytes": ("SANDBOX_MAX_MEMORY_BYTES", self.max_memory_bytes),
            "disk_bytes": ("SANDBOX_MAX_DISK_BYTES", self.max_disk_bytes),
            "num_processes": ("SANDBOX_MAX_PROCESSES", self.max_processes),
            "cpu_seconds": ("SANDBOX_MAX_SECONDS", self.max_seconds),
            "setup_timeout_seconds": ("SANDBOX_MAX_SECONDS", self.max_seconds),
            "tool_timeout_seconds": ("SANDBOX_MAX_SECONDS", self.max_seconds),
            "episode_timeout_seconds": ("SANDBOX_MAX_SECONDS", self.max_seconds),
            "verify_timeout_seconds": ("SANDBOX_MAX_SECONDS", self.max_seconds),
        }
        for name, (variable, ceiling) in ceilings.items():
            if getattr(limits, name) > ceiling:
                raise HostRefusal(
                    f"limits.{name}: {getattr(limits, name)} is more than this host allows, at most {ceiling:g} "
                    f"({variable})"
                )
        for use in SandboxUse:
            self._check_network(contract, use)
        for index, mount in enumerate(contract.mounts):
            try:
                self.resolve(mount)
            except HostRefusal as error:
                raise HostRefusal(f"mounts[{index}].source: {error}") from error

    def _check_network(self, contract: EnvironmentContract, use: SandboxUse) -> None:
        access = contract.access(use)
        if _ORDER.index(access.mode) > _ORDER.index(self.network):
            raise HostRefusal(
                f"network.{use}: {access.mode} is more than this host allows, which is {self.network} "
                "(SANDBOX_NETWORK); ask for none and bring the data in as files or mounts"
            )
        if self.network is NetworkMode.ALLOWLIST:
            for index, text in enumerate(access.allow):
                if parse_endpoint(text) not in self.network_hosts:
                    raise HostRefusal(
                        f"network.{use}.allow[{index}]: {text} is not among the hosts that this host allows "
                        "(SANDBOX_NETWORK_HOSTS)"
                    )

    def resolve(self, mount: Mount) -> Path:
        """The folder or file behind a mount. Raises HostRefusal where there is none or it leads out of its root."""
        root = self.data_roots.get(mount.root)
        if root is None:
            known = ", ".join(sorted(self.data_roots)) or "none"
            raise HostRefusal(f"this host has no data root {mount.root!r}; it has {known} (SANDBOX_DATA_ROOTS)")
        if mount.role not in root.roles:
            allowed = ", ".join(sorted(root.roles))
            raise HostRefusal(f"the data root {mount.root!r} is for the role {allowed}, not for {mount.role}")
        base = root.path.resolve()
        path = (base / mount.folder).resolve()
        if not path.is_relative_to(base):
            raise HostRefusal(f"{mount.source!r} leads out of its data root")
        if not (path.is_dir() or path.is_file()):
            hint = ": run `make environments` on every worker" if mount.root == TEST_TOOLS else ""
            raise HostRefusal(f"{mount.source!r} is neither a folder nor a file of this host{hint}")
        return path


def open_to_others(path: Path) -> bool:
    """Whether a user without any right of its own can reach and read a path."""
    mode = path.stat().st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & needed == needed and all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def load_host_policy(env: Mapping[str, str]) -> HostPolicy:
    """Read the SANDBOX_* variables. Raises ValueError starting with the variable's name."""
    text = env.get("SANDBOX_NETWORK") or NetworkMode.NONE
    try:
        network = NetworkMode(text)
    except ValueError:
        raise ValueError(f"SANDBOX_NETWORK: {text!r} is not one of {', '.join(NetworkMode)}") from None
    hosts = _endpoints(env, "SANDBOX_NETWORK_HOSTS")
    if network is NetworkMode.ALLOWLIST and not hosts:
        raise ValueError("SANDBOX_NETWORK_HOSTS: is empty; name the hosts that contracts may ask for, as host:port")
    cgroup = env.get("SANDBOX_CGROUP")
    if cgroup and not Path(cgroup, "cgroup.controllers").is_file():
        raise ValueError(f"SANDBOX_CGROUP: {cgroup!r} is not a cgroup v2 folder")
    defaults = HostPolicy()
    return HostPolicy(
        network=network,
        network_hosts=hosts,
        private_hosts=_endpoints(env, "SANDBOX_PRIVATE_HOSTS"),
        network_deny=_ranges(env, "SANDBOX_NETWORK_DENY"),
        data_roots=_data_roots(env.get("SANDBOX_DATA_ROOTS", "")),
        max_memory_bytes=_positive(env, "SANDBOX_MAX_MEMORY_BYTES", defaults.max_memory_bytes),
        max_disk_bytes=_positive(env, "SANDBOX_MAX_DISK_BYTES", defaults.max_disk_bytes),
        max_processes=_positive(env, "SANDBOX_MAX_PROCESSES", defaults.max_processes),
        max_seconds=_positive(env, "SANDBOX_MAX_SECONDS", int(defaults.max_seconds)),
        cgroup=Path(cgroup) if cgroup else None,
    )


def _endpoints(env: Mapping[str, str], name: str) -> frozenset[Endpoint]:
    try:
        return frozenset(parse_endpoint(part) for part in env.get(name, "").split(",") if part.strip())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _ranges(env: Mapping[str, str], name: str) -> tuple[Range, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in env.get(name, "").split(",") if part.strip())
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _data_roots(text: str) -> dict[str, DataRoot]:
    """`name=/folder:role+role`, comma separated; without roles: input and workspace."""
    roots = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, rest = part.partition("=")
        folder, _, roles = rest.partition(":")
        path = Path(folder)
        if not name or not path.is_absolute() or not path.is_dir():
            raise ValueError(
                f"SANDBOX_DATA_ROOTS: {part!r} must be name=/folder or name=/folder:role+role with a folder that exists"
            )
        try:
            kinds = frozenset(MountRole(role) for role in roles.split("+")) if roles else _OPEN_ROLES
        except ValueError as error:
            raise ValueError(f"SANDBOX_DATA_ROOTS: {error}; the roles are {', '.join(MountRole)}") from error
        roots[name] = DataRoot(path, kinds)
    return roots


_OPEN_ROLES = frozenset({MountRole.INPUT, MountRole.WORKSPACE})


def _positive(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name}: {text!r} is not a positive whole number")
    return int(text)


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
