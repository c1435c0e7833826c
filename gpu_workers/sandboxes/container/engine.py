"""The seam between a container sandbox and what runs it."""

from typing import Protocol

from gpu_workers.contracts.seams import Sandbox
from gpu_workers.sandboxes.container.endings import State, explain
from gpu_workers.sandboxes.container.launch import USER_ID, Launch

REMOVE_TRIES = 3


class EngineError(RuntimeError):
    """An engine that refuses; the message says what to do."""

    def __init__(self, output: str) -> None:
        complaint = explain(output)
        super().__init__(complaint.text)
        self.retryable = complaint.retryable


class Engine(Protocol):
    """Docker, Podman or Kubernetes, by its command-line client. Methods raise EngineError."""

    name: str
    runtime: str
    can_bind: bool  # whether folders of this host can be inside
    profile: bytes  # a system-call profile that `stream` reads from a descriptor; empty: the engine's own

    async def prepare(self, launch: Launch) -> None: ...  # everything before the stream
    def stream(self, launch: Launch, profile_path: str) -> list[str]: ...  # the client whose stdio is the server's
    async def state(self, name: str) -> State | None: ...  # None: there is no such container
    async def remove(self, name: str) -> None: ...  # safe to repeat
    async def sweep(self) -> list[str]: ...  # removes what nobody can want any more; the names
    def isolation(self, launch: Launch) -> str: ...
    def unmet(self, facts: dict[str, str]) -> list[str]: ...  # what a container of this engine must hold besides
    async def probe(self, sandbox: Sandbox) -> str: ...  # try to break out of a running one; the problem, or empty


# As an agent would try to get out. The last is a cloud's metadata service.
REACH_OUT = """
import os, socket
targets = [(os.environ.get("KUBERNETES_SERVICE_HOST"), 443), ("1.1.1.1", 443), ("169.254.169.254", 80)]
for host, port in targets:
    try:
        socket.create_connection((host, port), timeout=1.5).close()
    except (OSError, TypeError):
        continue
    raise SystemExit(f"{host}:{port} can be reached from inside")
"""


async def reach_out(sandbox: Sandbox) -> str:
    """Why a running sandbox is none: it can be got out of by network, or runs nothing. Empty when it holds."""
    done = await sandbox.run_python(REACH_OUT, timeout_seconds=8)
    if done.exit_code == 0:
        return ""
    return done.stderr.strip() or f"a program inside gave exit code {done.exit_code}"


def unmet_facts(launch: Launch, facts: dict[str, str]) -> list[str]:
    """What the contract promises and the server inside does not find; empty when all holds."""
    problems = []
    if facts.get("uid") != str(USER_ID):
        problems.append(f"it runs as uid {facts.get('uid')}, not {USER_ID}")
    for name in ("CapEff", "CapBnd"):
        if int(facts.get(name, "0"), 16):
            problems.append(f"it has capabilities ({name} {facts[name]})")
    if facts.get("NoNewPrivs", "1") != "1":
        problems.append("processes may gain privileges")
    if facts.get("filtered") != "1":
        problems.append("its kernel takes no filter of system calls, or is of another architecture than the worker's")
    if facts.get("writable"):
        problems.append(f"{facts['writable']} can be written")
    if facts.get("closed"):
        problems.append(f"{facts['closed']} cannot be written: the image must not have it, or with mode 1777")
    if int(facts.get("workspace_bytes", "0")) > launch.limits.disk_bytes + 4096:
        problems.append(f"/workspace holds {facts['workspace_bytes']} bytes, not {launch.limits.disk_bytes}")
    return problems
