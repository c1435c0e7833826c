"""What bounds a bubblewrap sandbox on this host, told for its record. Pure."""

from gpu_workers.contracts.environment import EnvironmentContract, MountRole, NetworkMode
from gpu_workers.sandboxes.command import SHM_BYTES, TMP_BYTES

LOOPBACK = "a namespace with nothing but loopback"


def memory_ceiling(contract: EnvironmentContract) -> int:
    """memory.max of a sandbox's cgroup: its processes and its tmpfs, which the kernel counts together."""
    limits = contract.limits
    return limits.memory_bytes + limits.disk_bytes + min(TMP_BYTES, limits.disk_bytes) + SHM_BYTES


def applied_bounds(contract: EnvironmentContract, *, cgroup: bool) -> dict[str, str]:
    """Topic -> the bound and what keeps it."""
    limits = contract.limits
    tree = "every 50 ms over the tree"
    by_group = (
        f"; cgroup v2 memory.max {memory_ceiling(contract)} with the tmpfs, pids.max {limits.num_processes}"
        if cgroup
        else "; no cgroup v2 delegated"
    )
    return {
        "memory": f"{limits.memory_bytes} bytes: RLIMIT_AS a process, PSS and shared memory {tree}{by_group}",
        "processes": f"{limits.num_processes}: RLIMIT_NPROC inside the user namespace",
        "cpu": f"{limits.cpu_seconds} s a call: RLIMIT_CPU a process, sum {tree}",
        "disk": f"{limits.disk_bytes} bytes: size of the workspace's tmpfs; number of files {tree}",
        "output": f"{limits.output_bytes} bytes a stream, the rest thrown away",
        "network": network(contract, f"none: {LOOPBACK}", f"{LOOPBACK} and the worker's proxy"),
        "mounts": ", ".join(_mounts(contract)) or "none",
        "files that leave": f"{', '.join(contract.artifacts) or 'none'}; {limits.artifact_bytes} bytes at most",
    }


def network(contract: EnvironmentContract, closed: str, way: str) -> str:
    """What a contract grants: `closed` where it is nothing, else the hosts that are reached by the `way`."""
    access = contract.access()
    if access.mode is NetworkMode.NONE:
        return closed
    hosts = "any public host" if access.mode is NetworkMode.FULL else ", ".join(access.allow)
    return f"through {way}: {hosts}"


def _mounts(contract: EnvironmentContract) -> list[str]:
    how = {MountRole.WORKSPACE: "copied", MountRole.INPUT: "read-only", MountRole.VERIFIER_SECRET: "read-only"}
    return [f"{mount.path} from {mount.source} ({how[mount.role]})" for mount in contract.visible_mounts()]
