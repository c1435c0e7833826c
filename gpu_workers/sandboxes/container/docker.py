"""Docker and Podman by their command lines, which take the same words but for a few."""

import json
import time
from typing import Any

from gpu_workers.contracts.environment import WORKSPACE
from gpu_workers.contracts.seams import Sandbox
from gpu_workers.sandboxes.command import SHM_BYTES
from gpu_workers.sandboxes.container.client import Done, find_client, run_client
from gpu_workers.sandboxes.container.endings import State
from gpu_workers.sandboxes.container.engine import REMOVE_TRIES, EngineError, reach_out
from gpu_workers.sandboxes.container.launch import COMMAND, CPUS, LABEL_SANDBOX, USER_ID, Launch, is_orphan
from gpu_workers.sandboxes.container.profile import seccomp_profile
from gpu_workers.sandboxes.masks import masked_in_proc

TMPFS = "rw,nosuid,nodev,exec,mode=1777"
MISSING = ("no such container", "no such object", "no container with name")
SANDBOXED = "runsc"  # gVisor: its own kernel takes the system calls


class DockerEngine:
    """One engine; which, its own variables say (DOCKER_HOST, CONTAINER_HOST). Mounts need one on this host."""

    can_bind = True

    def __init__(self, program: str = "docker", runtime: str = SANDBOXED) -> None:
        self.name = program
        self.runtime = runtime
        self.profile = seccomp_profile()
        self._podman = program == "podman"

    def stream(self, launch: Launch, profile_path: str) -> list[str]:
        """`run`, attached: what the client reads and writes is the server's. Nothing of it reaches the engine's log."""
        line = [find_client(self.name)]
        if self._podman:
            line += ["--runtime", self.runtime]
        line += ["run", "--interactive", "--name", launch.name, "--pull", "never"]
        if not self._podman:
            line += ["--runtime", self.runtime]
        for name, value in launch.labels.items():
            line += ["--label", f"{name}={value}"]
        line += [
            "--log-driver", "none", "--restart", "no", "--no-healthcheck", "--hostname", "sandbox",
            "--network", "none", "--ipc", "private", "--cgroupns", "private",
            "--user", f"{USER_ID}:{USER_ID}", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges", "--security-opt", f"seccomp={profile_path}",
            "--read-only", "--shm-size", str(SHM_BYTES),
            "--tmpfs", self._tmpfs("/tmp", launch.tmp_bytes),  # noqa: S108
            "--tmpfs", self._tmpfs(WORKSPACE, launch.limits.disk_bytes), "--workdir", WORKSPACE,
            "--memory", str(launch.memory_bytes), "--memory-swap", str(launch.memory_bytes),
            "--pids-limit", str(launch.num_processes), "--cpus", str(CPUS),
        ]  # fmt: skip
        for path, source in launch.binds.items():
            line += ["--mount", f"type=bind,source={source},target={path},readonly"]
        if self._podman:
            line += ["--http-proxy=false", "--read-only-tmpfs=false"]
            if self.runtime != SANDBOXED:  # gVisor's /proc is its own; Docker cannot be told to mask
                line += ["--security-opt", f"mask={':'.join(path for paths in masked_in_proc() for path in paths)}"]
        return [*line, "--entrypoint", COMMAND[0], launch.image, *COMMAND[1:]]

    def _tmpfs(self, path: str, size: int) -> str:
        return f"{path}:{TMPFS},size={size}" + (",notmpcopyup" if self._podman else "")

    async def prepare(self, launch: Launch) -> None:
        """Nothing: `run` makes and starts it."""

    async def state(self, name: str) -> State | None:
        done = await self._client("inspect", "--type", "container", name)
        if done.code != 0 and _is_missing(done):
            return None
        found = self._json(done)[0]["State"]
        return State(
            running=bool(found.get("Running")),
            exit_code=int(found.get("ExitCode", 0)),
            oom_killed=bool(found.get("OOMKilled")),
            message=str(found.get("Error", "")),
        )

    async def remove(self, name: str) -> None:
        words = ["rm", "--force", "--volumes"] + (["--time", "0"] if self._podman else [])
        for _ in range(REMOVE_TRIES):
            done = await self._client(*words, name)
            if done.code == 0 or _is_missing(done):
                return
        raise EngineError(done.stderr)

    async def sweep(self) -> list[str]:
        done = await self._client("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL_SANDBOX}=1")
        if done.code != 0:
            raise EngineError(done.stderr)
        removed = []
        if ids := done.stdout.split():
            now = time.time()
            # One that has gone meanwhile makes the client complain and still tell of the others.
            for found in json.loads((await self._client("inspect", "--type", "container", *ids)).stdout or "[]"):
                if is_orphan(found["Config"].get("Labels") or {}, now):
                    await self.remove(found["Id"])
                    removed.append(found["Name"].lstrip("/"))
        return removed

    def isolation(self, launch: Launch) -> str:
        return (
            f"{self.name}, runtime {self.runtime}, image {launch.image}: no network, read-only root, no capabilities, "
            f"no new privileges, {'its own kernel' if self.runtime == SANDBOXED else 'seccomp'}, uid {USER_ID}"
        )

    async def probe(self, sandbox: Sandbox) -> str:
        return await reach_out(sandbox)

    def unmet(self, facts: dict[str, str]) -> list[str]:
        problems = []
        if facts.get("interfaces", "lo") != "lo":
            problems.append(f"it has the interfaces {facts['interfaces']}")
        if self.runtime != SANDBOXED and facts.get("Seccomp") != "2":
            problems.append("no system-call filter applies")
        return problems

    async def _client(self, *words: str) -> Done:
        return await run_client([find_client(self.name), *words])

    @staticmethod
    def _json(done: Done) -> Any:
        if done.code != 0:
            raise EngineError(done.stderr)
        return json.loads(done.stdout)


def _is_missing(done: Done) -> bool:
    return any(words in done.stderr.lower() for words in MISSING)
