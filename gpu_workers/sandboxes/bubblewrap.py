"""Sandboxes of bubblewrap: one set of namespaces per episode with a resident server and the workspace as a tmpfs."""

import asyncio
import os
import subprocess
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import EnvironmentContract, MountRole, VerifierContract
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes import command
from gpu_workers.sandboxes.applied import applied_bounds, memory_ceiling
from gpu_workers.sandboxes.bounds import check_contract
from gpu_workers.sandboxes.cgroups import Delegated, SandboxGroup, find_delegated
from gpu_workers.sandboxes.channel import Channel, ChannelError, Identity, Reply, sealed
from gpu_workers.sandboxes.copies import batches, copied_files
from gpu_workers.sandboxes.host import HostPolicy, open_to_others
from gpu_workers.sandboxes.masks import masked_in_proc
from gpu_workers.sandboxes.proxy import Proxy
from gpu_workers.sandboxes.reach import Reach
from gpu_workers.sandboxes.resident import ResidentSandbox
from gpu_workers.sandboxes.seccomp import filter_program
from gpu_workers.sandboxes.snapshot import Snapshot, read_folder

SIGNALLED = 128  # exit codes from here on tell of a signal
SANDBOX_UID = 64_717  # of no account; only used when the worker is root


class BubblewrapBackend:
    """Makes bubblewrap sandboxes; may be shared by threads."""

    name = "bubblewrap"

    def __init__(self, uid: int = SANDBOX_UID, host: HostPolicy | None = None) -> None:
        self.identity = Identity(uid, uid) if os.geteuid() == 0 else Identity()
        self.host = HostPolicy() if host is None else host
        self.delegated = find_delegated(self.host.cgroup)

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
        check_contract(contract, self.host)
        return BubblewrapSandbox(contract, self.identity, self.host, self.delegated)


class BubblewrapSandbox(ResidentSandbox):
    """One episode's sandbox; its workspace stays readable after every process of it is gone."""

    def __init__(
        self, contract: EnvironmentContract, identity: Identity, host: HostPolicy, delegated: Delegated | None
    ) -> None:
        self._channel = Channel()
        super().__init__(contract, self._channel, BubblewrapBackend.name)
        self._identity = identity
        self._host = host
        self._delegated = delegated
        self._group: SandboxGroup | None = None
        self._num_killed = 0
        self._brought_down = ""  # by what ran inside: how
        self._proxy: Proxy | None = None
        self._snapshot: Snapshot | None = None

    async def start(self) -> None:
        """Start the namespaces and write the contract's files."""
        assert self._state == "new", "a sandbox starts once"
        # What can be refused is refused before anything is started.
        binds = self._binds()
        copies = await asyncio.to_thread(copied_files, self.contract, self._host)
        bwrap, python = command.find_bwrap(), command.find_python()
        descriptors = [
            sealed(filter_program(), "seccomp"),
            sealed(python.server, "server"),
            os.open(bwrap, os.O_RDONLY),
        ]
        # By descriptor: the binary may lie in a folder that the sandbox's user cannot enter.
        binary = f"/proc/self/fd/{descriptors[2]}"
        programs = {path: sealed(text.encode(), "program") for path, text in self._programs().items()}
        descriptors += programs.values()
        try:
            argv = command.command_line(
                binary,
                python,
                self.contract,
                seccomp_fd=descriptors[0],
                server_fd=descriptors[1],
                binds=binds,
                programs=programs,
            )
            await self._channel.start(
                argv,
                identity=self._identity,
                pass_fds=descriptors,
                timeout=self.contract.limits.setup_timeout_seconds,
            )
            await self._surround()
        except (ChannelError, OSError) as error:
            await self._end("start failed")
            masked_in_proc.cache_clear()  # one of them may have gone with a module of the kernel
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
        self.log.isolation = self._isolation()
        self.log.applied = applied_bounds(self.contract, cgroup=self._group is not None) | {"python": python.path}
        self.log.add("start")
        try:
            for batch in batches(copies):
                await self._write(batch, self.contract.limits.setup_timeout_seconds)
            await self._write_contract_files()
        except BaseException:
            await self._end("the files could not be written")
            raise

    def _programs(self) -> dict[str, str]:
        return self.contract.programs if isinstance(self.contract, VerifierContract) else {}

    def _binds(self) -> dict[str, Path]:
        """Path inside -> folder or file of the host. Raises WorkerError where the sandbox's user cannot read one."""
        binds = {}
        for mount in self.contract.visible_mounts():
            if mount.role is MountRole.WORKSPACE:
                continue
            source = self._host.resolve(mount)
            if self._identity.uid is not None and not open_to_others(source):
                problem = f"{source} is closed to the user that sandboxes run as; let others read it (chmod o+rX)"
                raise WorkerError(Boundary.ENVIRONMENT, f"contract.mounts: {mount.source}: {problem}", retryable=False)
            binds[mount.path] = source
        return binds

    async def _surround(self) -> None:
        """What holds process 1 from outside, before it has run anything: its cgroup, its way out."""
        limits = self.contract.limits
        if self._delegated is not None:
            self._group = self._delegated.create(memory_ceiling(self.contract), limits.num_processes)
            self._group.add(self._channel.server_pid)
        listener, self._channel.listener = self._channel.listener, None
        if listener is not None:
            reach = Reach.of(self.contract.access(), self._host.private_hosts, self._host.network_deny)
            self._proxy = Proxy(reach, self.log.add)
            self.log.network = self._proxy.log
            await self._proxy.start(listener)

    async def _end(self, reason: str) -> None:
        await super()._end(reason)
        if self._proxy is not None:
            await self._proxy.close()
        if self._group is not None:
            group, self._group = self._group, None
            group.remove()

    async def _last_words(self, error: ChannelError) -> Reply | None:
        """Process 1 ended by itself, or for want of memory: the call's doing. A signal can come from outside alone."""
        code, limit = await self._channel.exit_code(), ""
        if self._group is not None and self._group.num_killed() > self._num_killed:
            limit = "memory"
        elif not 0 < code < SIGNALLED:
            return None
        self._brought_down = f"the call ended its sandbox (code {code}): {error}"
        complaint = self._brought_down.encode()
        return Reply(-9, b"", complaint, 0.0, timed_out=False, truncated=False, limit_hit=limit)

    def _broken(self, reason: str) -> WorkerError:
        if self._brought_down:
            problem = f"the sandbox is not running: {self._brought_down}"
            return WorkerError(Boundary.POLICY, problem, retryable=False)
        return super()._broken(reason)

    def _see_limits(self, reply: Reply) -> Reply:
        if self._group is None or (killed := self._group.num_killed()) == self._num_killed:
            return reply
        self._num_killed = killed
        return replace(reply, limit_hit="memory")

    def _isolation(self) -> str:
        uid = os.geteuid() if self._identity.uid is None else self._identity.uid
        bounds = "cgroup v2, rlimits and tree watcher" if self._group is not None else "rlimits and tree watcher"
        return (
            f"{bwrap_version(command.find_bwrap())}: user, pid, net, ipc, uts, cgroup namespaces; seccomp; "
            f"no capabilities; uid {uid}, inside {command.INNER_UID}; bounds by {bounds}"
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
            limit = min(self.contract.limits.disk_bytes, self.contract.limits.artifact_bytes)
            fd = self._channel.workspace_fd
            self._snapshot = await asyncio.to_thread(
                read_folder, fd, limit, self.contract.artifacts, first=list(self.contract.files)
            )
            self._channel.release()
            found = f"files: {len(self._snapshot.files)} of {self._snapshot.num_bytes} bytes"
            self.log.add(f"{found}, {self._snapshot.num_left} not on the allow-list")
            for refused in self._snapshot.refused:
                self.log.refuse(refused)
        return self._snapshot.files


@lru_cache(maxsize=4)
def bwrap_version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
