"""Sandboxes that are containers; their process 1 is the resident server that bubblewrap's sandboxes have too."""

import asyncio
import contextlib
import logging
import time
from pathlib import Path

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.environment import WORKSPACE, EnvironmentContract, MountRole
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.sandboxes.bounds import check_contract
from gpu_workers.sandboxes.container.applied import applied_bounds
from gpu_workers.sandboxes.container.archive import ArchiveError, read_archive
from gpu_workers.sandboxes.container.engine import Engine, EngineError, unmet_facts
from gpu_workers.sandboxes.container.launch import IMAGE, Launch, new_launch
from gpu_workers.sandboxes.container.server import SNAPSHOT_SPARE, ContainerServer
from gpu_workers.sandboxes.copies import batches, copied_files
from gpu_workers.sandboxes.host import HostPolicy, open_to_others
from gpu_workers.sandboxes.proxy import Proxy
from gpu_workers.sandboxes.reach import Reach
from gpu_workers.sandboxes.resident import ResidentSandbox
from gpu_workers.sandboxes.snapshot import Snapshot

SWEEP_SECONDS = 600.0
SNAPSHOT_SECONDS = 30.0

logger = logging.getLogger(__name__)


class ContainerBackend:
    """Makes containers with one engine; may be shared by threads."""

    def __init__(self, engine: Engine, image: str, host: HostPolicy | None = None) -> None:
        if not IMAGE.match(image):
            raise ValueError(f"{image!r} is not an image by digest, as in python@sha256:<64 hexadecimal digits>")
        self.engine = engine
        self.name = engine.name
        self.image = image
        self.host = host or HostPolicy()
        self._next_sweep = 0.0
        self._sweeping: asyncio.Task[None] | None = None

    async def probe(self) -> str:
        """Run a program in a container as episodes get it; the isolation applied. Raises WorkerError with advice."""
        sandbox = self.create(EnvironmentContract())
        try:
            await sandbox.start()
            if problem := await self.engine.probe(sandbox):
                raise unavailable(problem)
            return sandbox.record.isolation
        finally:
            await sandbox.close()

    def create(self, contract: EnvironmentContract) -> "ContainerSandbox":
        """A sandbox that is not started. Raises WorkerError on a contract that asks for more than can be granted."""
        check_contract(contract, self.host, images=True)
        return ContainerSandbox(new_launch(contract, contract.image or self.image, self._binds(contract)), self)

    def _binds(self, contract: EnvironmentContract) -> dict[str, Path]:
        binds = {}
        for index, mount in enumerate(contract.visible_mounts()):
            if mount.role is MountRole.WORKSPACE:
                continue
            source = self.host.resolve(mount)
            if not self.engine.can_bind:
                raise _refused(f"mounts[{index}]", f"{self.name} has no folders of this host; put it into the image")
            if not open_to_others(source):
                raise _refused(f"mounts[{index}]", f"{source} is closed to others; let them read it (chmod o+rX)")
            if set(f"{source}{mount.path}") & set(',"\n'):
                raise _refused(f"mounts[{index}]", f"{source} or {mount.path} holds a character that engines split at")
            binds[mount.path] = source
        return binds

    def sweep_when_due(self) -> None:
        """Look for what killed workers have left, now and then, beside the work."""
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP_SECONDS
            self._sweeping = asyncio.create_task(self._sweep())

    async def _sweep(self) -> None:
        try:
            removed = await self.engine.sweep()
        except EngineError as error:
            logger.warning("containers left behind could not be looked for: %s", error)
        else:
            if removed:
                logger.warning("removed containers left behind by ended workers: %s", ", ".join(removed))


class ContainerSandbox(ResidentSandbox):
    """One episode's container. Its workspace is gone with it, so the snapshot is taken by the last call."""

    def __init__(self, launch: Launch, backend: ContainerBackend) -> None:
        self.launch = launch
        self._backend = backend
        self._engine = backend.engine
        self._container = ContainerServer(launch, backend.engine)
        super().__init__(launch.contract, self._container, backend.name)
        self._container.log = self.log
        self._proxy: Proxy | None = None
        if access := launch.contract.access():
            host = backend.host
            self._proxy = Proxy(Reach.of(access, host.private_hosts, host.network_deny), self.log.add)
            self._container.grant(self._proxy.serve)
            self.log.network = self._proxy.log
        self._snapshot: Snapshot | None = None

    async def start(self) -> None:
        """Start the container, see that it holds what was asked for, write the contract's files."""
        assert self._state == "new", "a sandbox starts once"
        seconds = self.contract.limits.setup_timeout_seconds
        copies = await asyncio.to_thread(copied_files, self.contract, self._backend.host)
        try:
            async with asyncio.timeout(seconds):
                facts = await self._container.start()
        except TimeoutError as error:
            await self._end("start timed out")
            raise unavailable(f"no sign of life within {seconds:g} s", retryable=True) from error
        except EngineError as error:
            await self._end("start failed")
            raise unavailable(str(error), retryable=error.retryable) from error
        except BaseException:
            await self._end("start interrupted")
            raise
        if missing := facts.get("missing_links"):
            await self._end("links are missing")
            problem = f"a container's root is read-only, and the image has no {missing} that leads below {WORKSPACE}"
            raise _refused("links", f"{problem} as asked for; make it in the image with `ln -s`")
        if problems := unmet_facts(self.launch, facts) + self._engine.unmet(facts):
            await self._end("not what was asked for")
            raise unavailable(f"a container of {self._engine.name} does not hold the contract: {'; '.join(problems)}")
        self._state = "running"
        self.log.isolation = f"{self._engine.isolation(self.launch)}; kernel inside {facts.get('kernel', 'unknown')}"
        self.log.applied = applied_bounds(self.launch, facts)
        self.log.add(f"start of {self.launch.name}")
        self._backend.sweep_when_due()
        try:
            for batch in batches(copies):
                await self._write(batch, seconds)
            await self._write_contract_files()
        except BaseException:
            await self._end("the files could not be written")
            raise

    async def _end(self, reason: str) -> None:
        try:
            await super()._end(reason)
        finally:
            if self._proxy is not None:
                await self._proxy.close()

    def _broken(self, reason: str) -> WorkerError:
        ending = self._container.ending
        if ending is not None and ending.by_policy:
            return WorkerError(Boundary.POLICY, f"the sandbox is not running: {ending.reason}", retryable=False)
        return super()._broken(reason)

    async def files(self) -> dict[str, bytes]:
        """Every process but the server is gone after a call: read the workspace, then end the container.

        Empty when the policy has brought its container down. Raises WorkerError(INFRASTRUCTURE) when somebody else has.
        """
        if self._snapshot is None:
            if self._state == "running":
                await self._take_snapshot()
            elif self._state == "ended" and self._ended_because != "closed":
                self._raise_unless_lost_by_policy(self._ended_because)
        return {} if self._snapshot is None else self._snapshot.files

    async def _take_snapshot(self) -> None:
        limits = self.contract.limits
        request = {"op": "snapshot", "limit": limits.disk_bytes, "first": list(self.contract.files)}
        seconds = max(SNAPSHOT_SECONDS, limits.tool_timeout_seconds)
        try:
            reply = await self._request(request, "snapshot", seconds, output_limit=limits.disk_bytes + SNAPSHOT_SPARE)
        except WorkerError as error:
            self._raise_unless_lost_by_policy(str(error))
            return
        if self._container.ending is not None:
            self._raise_unless_lost_by_policy(self._container.ending.reason)
            return
        if reply.exit_code != 0 or reply.timed_out or reply.truncated:
            complaint = reply.stderr.decode(errors="replace").strip() or f"exit code {reply.exit_code}"
            raise WorkerError(Boundary.INFRASTRUCTURE, f"the workspace could not be read: {complaint}")
        try:
            self._snapshot = await asyncio.to_thread(
                read_archive, reply.stdout, min(limits.artifact_bytes, limits.disk_bytes), self.contract.artifacts
            )
        except ArchiveError as error:
            raise WorkerError(Boundary.INFRASTRUCTURE, f"the workspace could not be read: {error}") from error
        await self._end("files taken")
        self.log.add(f"files: {len(self._snapshot.files)} of {self._snapshot.num_bytes} bytes")
        for refused in self._snapshot.refused:
            self.log.refuse(refused)

    def _raise_unless_lost_by_policy(self, reason: str) -> None:
        error = self._broken(reason)
        if error.boundary is not Boundary.POLICY:
            raise error
        self.log.add(f"files: lost, {error}")

    async def close(self) -> None:
        """Remove the container. Safe to repeat."""
        with contextlib.suppress(EngineError):  # in the log; the sweep comes back to it
            await super().close()


def _refused(field: str, problem: str) -> WorkerError:
    return WorkerError(Boundary.ENVIRONMENT, f"contract.{field}: {problem}", retryable=False)


def unavailable(message: str, *, retryable: bool = False) -> WorkerError:
    return WorkerError(Boundary.INFRASTRUCTURE, f"SANDBOX_UNAVAILABLE: {message}", retryable=retryable)
