"""A contract told to people: one row a topic, granted or denied. Pure; pages and the API show the same rows."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_workers.contracts.environment import (
    EnvironmentContract,
    Limits,
    MountRole,
    NetworkAccess,
    NetworkMode,
    SandboxUse,
)


@dataclass(frozen=True)
class Grant:
    """One row. `limit` true: granted up to the bound that `text` names."""

    topic: str
    granted: bool
    text: str
    limit: bool = False


def describe(contract: EnvironmentContract) -> list[Grant]:
    """What a contract grants and what it denies; what is denied to every contract stands last."""
    return [*_network(contract), *_data(contract), *_bounds(contract.limits), *_rest(contract), *_ALWAYS]


def _network(contract: EnvironmentContract) -> Iterator[Grant]:
    for use in SandboxUse:
        access = contract.access(use)
        yield Grant(f"Network of the {use}", bool(access), _reach(access))


def _reach(access: NetworkAccess) -> str:
    if access.mode is NetworkMode.NONE:
        return "none: no address, not even the host's localhost"
    if access.mode is NetworkMode.FULL:
        return "any public host through the worker's proxy, which logs each connection; no private address"
    return f"through the worker's proxy, which logs each connection: {', '.join(access.allow)}"


def _data(contract: EnvironmentContract) -> Iterator[Grant]:
    who = {
        MountRole.WORKSPACE: "copied into the workspace, may be changed there",
        MountRole.INPUT: "read-only",
        MountRole.VERIFIER_SECRET: "read-only for the verifier, never there while the agent runs",
    }
    for mount in contract.mounts:
        granted = mount.role is not MountRole.VERIFIER_SECRET
        yield Grant(f"Data {mount.path}", granted, f"{mount.source}: {who[mount.role]}")
    if not contract.mounts:
        yield Grant("Data of the host", False, "none is mounted")
    names = sorted(contract.files)
    text = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    yield Grant("Files given", bool(names), text or "none")
    variables = ", ".join(sorted(contract.environment))
    yield Grant("Variables", bool(variables), variables or "none but the sandbox's own")


def _bounds(limits: Limits) -> Iterator[Grant]:
    bounds = {
        "CPU time": f"{limits.cpu_seconds} s a call, summed over its processes",
        "Memory": f"{_size(limits.memory_bytes)}, summed over its processes",
        "Processes": f"{limits.num_processes} at once",
        "Workspace": f"{_size(limits.disk_bytes)}, gone with the sandbox",
        "Output": f"{_size(limits.output_bytes)} of each stream of a call",
        "Time": (
            f"{limits.tool_timeout_seconds:g} s a call, {limits.episode_timeout_seconds:g} s for all calls of an "
            f"episode, {limits.verify_timeout_seconds:g} s for the verifier, "
            f"{limits.setup_timeout_seconds:g} s to start"
        ),
    }
    for topic, text in bounds.items():
        yield Grant(topic, True, text, limit=True)


def _rest(contract: EnvironmentContract) -> Iterator[Grant]:
    artifacts = f"{', '.join(contract.artifacts)}; together at most {_size(contract.limits.artifact_bytes)}"
    yield Grant("Files that leave", bool(contract.artifacts), artifacts if contract.artifacts else "none", limit=True)
    if contract.image:
        yield Grant("Image", True, contract.image)


def _size(num_bytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.4g} {unit}"
    return f"{num_bytes} bytes"


_ALWAYS = (
    Grant("Files of the host", False, "only its programs and libraries, read-only, without installed packages"),
    Grant("Other episodes", False, "no process, file, socket or shared memory of another sandbox"),
    Grant("Devices", False, "none but null, zero, full, random, urandom and the terminal's"),
    Grant("Privileges", False, "no user of the host, no capability, no set-uid program"),
    Grant("Kernel", False, "no namespace, mount, tracing, module, clock or setting of the kernel"),
    Grant("Survival", False, "no process outlives its call, no file outlives the sandbox but those that leave"),
)
