"""What bounds a container, told for its record: what was asked for and what the server found inside. Pure."""

from collections.abc import Mapping

from gpu_workers.sandboxes.applied import network
from gpu_workers.sandboxes.container.launch import CPUS, Launch

UNLIMITED = 2**60  # cgroup v1 shows no limit as a number near 2**63


def applied_bounds(launch: Launch, facts: Mapping[str, str]) -> dict[str, str]:
    """Topic -> the bound and what keeps it."""
    limits = launch.limits
    tree = "every 50 ms over the tree"
    seen = facts.get("interfaces", "unknown")
    way = network(launch.contract, "none", "the server's own stream and the worker's proxy")
    return {
        "memory": (
            f"{limits.memory_bytes} bytes: RLIMIT_AS a process, memory {tree}; the whole container "
            f"{launch.memory_bytes} with its tmpfs, {_seen(facts.get('memory', ''))}"
        ),
        "processes": f"{limits.num_processes}: by the server {tree}; the engine's limit {launch.num_processes}",
        "cpu": f"{limits.cpu_seconds} s a call: RLIMIT_CPU a process, sum {tree}; {CPUS} CPU at a time",
        "disk": f"{limits.disk_bytes} bytes: size of the workspace's tmpfs, {facts.get('workspace_bytes')} seen inside",
        "output": f"{limits.output_bytes} bytes a stream, the rest thrown away",
        "network": f"{way}; interfaces seen inside: {seen}",
        "system calls": (
            f"bubblewrap's filter and no signals to process 1; before it the engine's, seccomp mode "
            f"{facts.get('Seccomp', 'unknown')}; kernel {facts.get('kernel', 'unknown')}"
        ),
        "mounts": ", ".join(_mounts(launch)) or "none",
        "files that leave": f"{', '.join(launch.contract.artifacts) or 'none'}; {limits.artifact_bytes} bytes at most",
    }


def _mounts(launch: Launch) -> list[str]:
    how = {True: "read-only", False: "copied"}
    mounts = launch.contract.visible_mounts()
    return [f"{mount.path} from {mount.source} ({how[mount.path in launch.binds]})" for mount in mounts]


def _seen(memory: str) -> str:
    if not memory:
        return "which is not visible inside"
    if memory == "max" or int(memory) >= UNLIMITED:
        return "which the engine has NOT applied"
    return f"{memory} seen inside"
