"""Sandboxes of bubblewrap: one set of namespaces per episode with a resident server and the workspace as a tmpfs."""

import asyncio
import os
import subprocess
from functools import lru_cache

from gpu_workers.contracts.tasks import EnvironmentContract
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.bounds import check_contract
from gpu_workers.sandboxes.channel import Channel, ChannelError, Identity, sealed
from gpu_workers.sandboxes.resident import START_TIMEOUT_SECONDS, ResidentSandbox
from gpu_workers.sandboxes.seccomp import filter_program
from gpu_workers.sandboxes.snapshot import Snapshot, read_folder

SANDBOX_UID = 64_717  # of no account; only used when the worker is root


class BubblewrapBackend:
    """Makes bubblewrap sandboxes; may be shared by threads."""

    name = "bubblewrap"

    def __init__(self, uid: int = SANDBOX_UID) -> None:
        self.identity = Identity(uid, uid) if os.geteuid() == 0 else Identity()

    async def probe(self) -> str:
        """Run `true` in a sandbox as episodes get it; the isolation applied. Raises WorkerError saying what to do."""
        sandbox = self.create(EnvironmentContract())
        try:
            await sandbox.start()
            result = await sandbox.exec(["true"])
            if result.exit_code != 0:
                raise command.unavailable(f"`true` inside a sandbox gave exit code {result.exit_code}: {result.stderr}")
            return sandbox.record.isolation
        finally:
            await sandbox.close()

    def create(self, contract: EnvironmentContract) -> "BubblewrapSandbox":
        """A sandbox that is not started. Raises WorkerError on a contract that asks for more than can be granted."""
        check_contract(contract)
        return BubblewrapSandbox(contract, self.identity)


class BubblewrapSandbox(ResidentSandbox):
    """One episode's sandbox; its workspace stays readable after every process of it is gone."""

    def __init__(self, contract: EnvironmentContract, identity: Identity) -> None:
        self._channel = Channel()
        super().__init__(contract, self._channel, BubblewrapBackend.name)
        self._identity = identity
        self._snapshot: Snapshot | None = None

    async def start(self) -> None:
        """Start the namespaces and write the contract's files."""
        assert self._state == "new", "a sandbox starts once"
        bwrap, python = command.find_bwrap(), command.find_python()
        descriptors = [
            sealed(filter_program(), "seccomp"),
            sealed(python.server, "server"),
            os.open(bwrap, os.O_RDONLY),
        ]
        # By descriptor: the binary may lie in a folder that the sandbox's user cannot enter.
        binary = f"/proc/self/fd/{descriptors[2]}"
        argv = command.command_line(binary, python, self.contract, seccomp_fd=descriptors[0], server_fd=descriptors[1])
        try:
            await self._channel.start(
                argv, identity=self._identity, pass_fds=descriptors, timeout=START_TIMEOUT_SECONDS
            )
        except (ChannelError, OSError) as error:
            await self._end("start failed")
            raise command.unavailable(
                f"bubblewrap cannot start: {error}. {command.why_no_namespaces()}".strip()
            ) from error
        except BaseException:
            await self._end("start interrupted")
            raise
        finally:
            for fd in descriptors:
                os.close(fd)
        self._state = "running"
        self.log.isolation = self._isolation(python.path)
        self.log.add("start")
        await self._write_contract_files()

    def _isolation(self, python: str) -> str:
        uid = os.geteuid() if self._identity.uid is None else self._identity.uid
        limits = self.contract.limits
        return (
            f"{bwrap_version(command.find_bwrap())}: user, pid, net, ipc, uts, cgroup namespaces; seccomp; "
            f"no capabilities; uid {uid}, inside {command.INNER_UID}; workspace {limits.disk_bytes} bytes of tmpfs; "
            f"memory {limits.memory_bytes} bytes by RLIMIT_AS and PSS of the tree every 50 ms; cpu by RLIMIT_CPU and "
            f"sum of the tree; {limits.num_processes} processes by RLIMIT_NPROC; python {python}"
        )

    @property
    def workspace_fd(self) -> int:
        """The worker's own descriptor of the workspace, by which it can be watched; -1 where there is none."""
        return self._channel.workspace_fd

    async def files(self) -> dict[str, bytes]:
        """End the process tree, then read the workspace."""
        if self._snapshot is None:
            await self._end("files taken")
            if self._channel.workspace_fd < 0:
                return {}
            limit = self.contract.limits.disk_bytes
            self._snapshot = await asyncio.to_thread(read_folder, self._channel.workspace_fd, limit)
            self._channel.release()
            self.log.add(f"files: {len(self._snapshot.files)} of {self._snapshot.num_bytes} bytes")
            for refused in self._snapshot.refused:
                self.log.refuse(refused)
        return self._snapshot.files


@lru_cache(maxsize=4)
def bwrap_version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
