"""A running host: started in isolation, spoken to line by line, used for one session at a time, kept warm."""

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpu_workers.contracts.enums import Boundary
from gpu_workers.contracts.seams import WorkerError
from gpu_workers.environments.hosts.protocol import MAX_LINE
from gpu_workers.environments.isolation import host_command
from gpu_workers.sandboxes.bubblewrap import SANDBOX_UID
from gpu_workers.settings import settings

START_SECONDS = 120.0  # importing a framework on a busy machine
CLOSE_SECONDS = 10.0
MAX_HOSTS = 8  # of one worker process; a framework takes some hundred megabytes
MAX_COMPLAINT = 2000


class HostGone(Exception):
    """The host ended, or said nothing in time (`timed_out`)."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class HostProcess:
    """One process with its framework imported."""

    def __init__(self, environments: Path, kind: str) -> None:
        self.kind = kind
        host = host_command(environments, kind)
        self.isolation = host.isolation
        self._complaints = os.memfd_create("stderr")
        user = SANDBOX_UID if os.geteuid() == 0 else None
        try:
            self._process = subprocess.Popen(
                host.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, env={}, cwd="/",
                pass_fds=host.pass_fds, user=user, group=user, extra_groups=None if user is None else [], bufsize=0,
            )  # fmt: skip
        finally:
            for fd in host.pass_fds:
                os.close(fd)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._rest = b""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def request(self, message: dict[str, Any] | None, timeout_seconds: float) -> dict[str, Any]:
        """Send a request (None: only wait) and return the answer. Raises HostGone; the host is of no use after that."""
        try:
            async with asyncio.timeout(timeout_seconds):
                if message is not None:
                    await self._write(json.dumps(message).encode() + b"\n")
                return await self._read()
        except TimeoutError as error:
            self.kill()
            raise HostGone(f"no answer within {timeout_seconds:g} s", timed_out=True) from error
        except HostGone:
            self.kill()
            raise
        except (OSError, ValueError) as error:
            complaint = self._complaint()
            self.kill()
            raise HostGone(f"{error}. {complaint}".strip()) from error
        except BaseException:
            self.kill()
            raise

    async def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._in, data) :]
            except BlockingIOError:
                await _ready(self._in, write=True)

    async def _read(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            try:
                data = os.read(self._out, 1 << 16)
            except BlockingIOError:
                await _ready(self._out)
                continue
            if not data:
                raise HostGone(f"the environment's host ended. {self._complaint()}".strip())
            self._rest += data
            if len(self._rest) > MAX_LINE + 1:
                raise HostGone("an answer is too long")
        line, _, self._rest = self._rest.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict) or not isinstance(answer.get("event"), str):
            raise HostGone("an answer is no event")
        return answer

    def _complaint(self) -> str:
        """The last line that the host wrote to its error output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        size = os.fstat(self._complaints).st_size
        text = (
            os.pread(self._complaints, MAX_COMPLAINT, max(0, size - MAX_COMPLAINT)).decode("utf-8", "replace").strip()
        )
        return f"It said: {text.splitlines()[-1][:500]}" if text else ""

    def kill(self) -> None:
        """End the whole process tree: bubblewrap's death takes its namespaces along. Safe to repeat."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._complaints >= 0:
            fd, self._complaints = self._complaints, -1
            os.close(fd)


async def _ready(fd: int, *, write: bool = False) -> None:
    """Wait until a descriptor can be read or written."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    add(fd, wake)
    try:
        await done
    finally:
        remove(fd)


class Hosts:
    """Warm hosts of this worker process. A host serves one session at a time; a broken one is never used again."""

    def __init__(self, environments: Path, most: int = MAX_HOSTS) -> None:
        self.environments = environments
        self._most = most
        self._idle: list[HostProcess] = []
        self._num_busy = 0
        self._lock = threading.Lock()

    async def take(self, kind: str) -> HostProcess:
        """A host with a fresh session. Raises WorkerError when none can be had."""
        host = await self._reserve(kind)
        try:
            if host is None:
                host = HostProcess(self.environments, kind)
                await host.request(None, START_SECONDS)  # ready
            opened = await host.request({"op": "open"}, START_SECONDS)
            if opened["event"] != "opened":
                raise HostGone(str(opened.get("message", opened["event"])))
        except BaseException as error:
            with self._lock:
                self._num_busy -= 1
            if host is not None:
                host.kill()
            if isinstance(error, HostGone):
                message = f"SANDBOX_UNAVAILABLE: host {kind}: {error}"
                raise WorkerError(Boundary.INFRASTRUCTURE, message) from error
            raise
        return host

    async def give_back(self, host: HostProcess) -> None:
        """End the session; keep the host for another one where it ended well."""
        try:
            ended = host.alive and (await host.request({"op": "close"}, CLOSE_SECONDS))["event"] == "closed"
        except HostGone:
            ended = False
        if not ended:
            host.kill()
        with self._lock:
            self._num_busy -= 1
            if ended:
                self._idle.append(host)

    def close(self) -> None:
        """End every idle host."""
        with self._lock:
            idle, self._idle = self._idle, []
        for host in idle:
            host.kill()

    async def _reserve(self, kind: str) -> HostProcess | None:
        """An idle host of the kind; None: start one. Waits while as many as may be are busy."""
        while True:
            surplus = None
            with self._lock:
                self._idle = [host for host in self._idle if host.alive]
                found = next((host for host in self._idle if host.kind == kind), None)
                if found is None and self._idle and self._num_busy + len(self._idle) >= self._most:
                    surplus = self._idle.pop(0)
                if found is not None:
                    self._idle.remove(found)
                if found is not None or self._num_busy + len(self._idle) < self._most:
                    self._num_busy += 1
                    break
            await asyncio.sleep(0.05)
        if surplus is not None:
            surplus.kill()
        return found


@lru_cache(maxsize=1)
def worker_hosts() -> Hosts:
    """The hosts of this worker process."""
    return Hosts(settings().environments_dir)
