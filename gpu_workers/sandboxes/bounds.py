"""What a contract may ask for and which paths lie in a workspace; the same for every backend."""

import re

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.contracts.tasks import EnvironmentContract

WORKSPACE = "/workspace"
MIN_PROCESSES = 8  # the sandbox's own two, a shell and what it starts
MIN_MEMORY = 32 * 2**20
MIN_DISK = 64 * 2**10
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def check_contract(contract: EnvironmentContract) -> None:
    """Refuse what no backend grants. Raises WorkerError(ENVIRONMENT) naming the field."""
    if contract.network:
        _refuse("network", "True is not supported by this sandbox; set it to False and bring the data in as files")
    for name, value in contract.environment.items():
        if not _NAME.match(name) or "\0" in value:
            _refuse("environment", f"{name!r} is not a variable")
    for path in contract.files:
        try:
            workspace_path(path)
        except WorkerError as error:
            _refuse("files", str(error))
    limits = contract.limits
    for name, minimum in (("num_processes", MIN_PROCESSES), ("memory_bytes", MIN_MEMORY), ("disk_bytes", MIN_DISK)):
        if getattr(limits, name) < minimum:
            _refuse(f"limits.{name}", f"{getattr(limits, name)} is too small to start anything, at least {minimum}")
    for name in ("cpu_seconds", "output_bytes", "tool_timeout_seconds", "verify_timeout_seconds"):
        if not 0 < getattr(limits, name) < 2**31:
            _refuse(f"limits.{name}", f"{getattr(limits, name)} must be positive")
    if sum(len(text.encode()) for text in contract.files.values()) > limits.disk_bytes:
        _refuse("files", f"they do not fit into limits.disk_bytes {limits.disk_bytes}")


def _refuse(name: str, problem: str) -> None:
    raise WorkerError(Boundary.ENVIRONMENT, f"contract.{name}: {problem}", retryable=False)


def workspace_path(path: str) -> str:
    """A path relative to the workspace. Raises WorkerError(POLICY) on one that leaves it."""
    inside = path.removeprefix(WORKSPACE + "/")
    if not inside or inside.startswith("/") or ".." in inside.split("/") or "\0" in inside:
        raise WorkerError(Boundary.POLICY, f"{path!r} is not a path below {WORKSPACE}", retryable=False)
    return inside
