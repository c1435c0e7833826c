"""Starts every process of one machine in order, restarts what dies, stops it all in the opposite order."""

import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from ratchet.env import ROOT, Env
from ratchet.services import children, lock, marks, preflight
from ratchet.services.child import Child
from ratchet.services.errors import ServiceError
from ratchet.services.postgres import EmbeddedPostgres
from ratchet.services.processes import (
    FULL_ENGINE,
    PROCESSES,
    Plane,
    ProcessSpec,
    control_environment,
    data_environment,
    environment,
    health_url,
    log_path,
    render,
    system_environment,
)
from ratchet.services.progress import Waiting
from ratchet.services.sentinel import SERVERS
from ratchet.services.valkey import EmbeddedValkey

_POLL_SECONDS = 0.1
_READY_SECONDS = 120.0
_MAX_FAILURES_AT_START = 3
_INTERRUPTED = 130  # as shells have it: the command did not come to its end


class Stopped(Exception):
    """A signal asked for the end."""


@dataclass
class Supervisor:
    """One machine. `say` prints progress for people."""

    env: Env
    say: Callable[[str], None]
    names: frozenset[str]
    children: list[Child] = field(default_factory=list)
    stop_requested: bool = False

    def __post_init__(self) -> None:
        self.mark = marks.supervisor_mark(self.env.home.root, uuid.uuid4().hex)

    def run(self, then: str = "", *, exit_after: bool = False) -> int:
        """Start, run `then` once all is ready, supervise until a signal. Returns the exit status."""
        preflight.require_usable_home(self.env.home.root)
        handle = lock.acquire(self.env.home.lock)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        sentinel: subprocess.Popen[bytes] | None = None
        try:
            self._end_leftovers()
            preflight.require_free_ports(self._ports())
            sentinel = self._start_sentinel()
            self._start()
            return self._supervise(then, exit_after)
        except Stopped:
            return _INTERRUPTED if exit_after else 0
        finally:
            self._stop_all()
            if sentinel is not None and sentinel.stdin is not None:
                sentinel.stdin.close()
                sentinel.wait()
            handle.close()

    # Start

    def _ports(self) -> dict[str, int]:
        env = self.env
        ports = {"web": ("RATCHET_PORT", env.port), "gateway": ("RATCHET_GATEWAY_PORT", env.gateway_port)}
        if env.engine_embedded:
            ports["engine"] = ("RATCHET_ENGINE_PORT", env.engine_port)
        if env.full_engine_embedded:
            ports[FULL_ENGINE.name] = ("RATCHET_FULL_ENGINE_PORT", env.full_engine_port)
        return {variable: port for name, (variable, port) in ports.items() if name in self.names}

    def _end_leftovers(self) -> None:
        """End what an earlier, killed supervisor of this home left: servers gently, the rest at once."""
        marks.end_marked(f"{self.env.home.root}:", spare=SERVERS)
        children.wait_until(
            lambda: not any(marks.server_processes(self.env.home)), alive=lambda: True, timeout_seconds=10.0
        )
        marks.end_all(lambda: marks.server_processes(self.env.home))

    def _start_sentinel(self) -> subprocess.Popen[bytes]:
        env = system_environment() | {"PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"}
        return subprocess.Popen(
            [sys.executable, "-m", "ratchet.services.sentinel", self.mark],
            stdin=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )

    def _start(self) -> None:
        self.env.home.logs.mkdir(exist_ok=True)
        self._start_servers()
        table = [spec for spec in PROCESSES if spec.name in self.names]
        if not self.env.engine_embedded:
            table = [spec for spec in table if spec.name != "engine"]
        if self.env.full_engine_embedded and FULL_ENGINE.name in self.names:
            table.append(FULL_ENGINE)
        if table:
            preflight.require_redis(self.env.redis_url)
        if any(spec.plane is Plane.CONTROL for spec in table):
            preflight.require_database(self.env.database_owner_url)
            self.say("Preparing the database …")
            # The only process that gets the owner's address: it makes the tables, and the application's role.
            owner = control_environment(self.env) | {"DATABASE_OWNER_URL": self.env.database_owner_url}
            command = [sys.executable, str(ROOT / "manage.py"), "migrate", "--no-input", "-v", "1"]
            self._run_step("migrate", command, variables=owner, what="the database's tables")
            preflight.require_database(self.env.database_url)
        # Engines need their model's files first; everything else starts meanwhile, so that people can watch.
        engines = [spec for spec in table if spec.name in ("engine", FULL_ENGINE.name)]
        others = [spec for spec in table if spec not in engines]
        for spec in others:
            self._start_process(spec, model="")
        if "web" in self.names:
            self._wait_ready(next(spec for spec in others if spec.name == "web"))
            self.say(f"Pages: {self.env.public_url}")
        for spec in engines:
            self._start_process(spec, model=self._prepare_model())
        for spec in table:
            if spec.health:
                self._wait_ready(spec)

    def _start_servers(self) -> None:
        env, home = self.env, self.env.home
        if env.database_embedded and "postgres" in self.names:
            self.say("Starting PostgreSQL …")
            postgres = EmbeddedPostgres(
                home.postgres, home.sockets, log_path(env, "postgres"), self._marked("postgres", system_environment())
            )
            postgres.start()
            self.children.append(Child("postgres", postgres.launch, signal.SIGINT, 30.0, postgres.process))
        if env.redis_embedded and "valkey" in self.names:
            self.say("Starting Valkey …")
            valkey = EmbeddedValkey(
                home.valkey, home.valkey_socket, log_path(env, "valkey"), self._marked("valkey", system_environment())
            )
            valkey.start()
            self.children.append(Child("valkey", valkey.launch, process=valkey.process))

    def _start_process(self, spec: ProcessSpec, *, model: str) -> None:
        argv = render(spec, self.env, model=model)
        variables = self._marked(spec.name, environment(spec, self.env))
        log = log_path(self.env, spec.name)
        child = Child(
            spec.name,
            lambda: children.spawn(argv, env=variables, log=log, cwd=ROOT),
            spec.stop_signal,
            spec.stop_seconds,
        )
        child.start()
        self.children.append(child)

    def _prepare_model(self) -> str:
        """Folder of the engine's base model; a model of ours is prepared below the home first."""
        name = self.env.engine_model
        if "/" in name:
            return name
        self.say(f"Preparing the base policy {name} …")
        argv = [sys.executable, "-m", "gpu_workers.models", name, "--home", str(self.env.home.root)]
        what = f"the files of {name}"
        output = self._run_step("models", argv, variables=data_environment(self.env), what=what)
        return output.strip().splitlines()[-1]

    def _run_step(self, name: str, argv: Sequence[str], *, variables: Mapping[str, str], what: str) -> str:
        """Run a command to its end while supervising the rest; returns what it printed. Raises ServiceError."""
        log = log_path(self.env, name)
        start = log.stat().st_size if log.exists() else 0
        marked, waiting = self._marked(name, variables), Waiting(what, self.say)
        process = children.spawn(argv, env=marked, log=log, cwd=ROOT)
        try:
            while process.poll() is None:
                self._tick()
                waiting.look()
        finally:
            children.stop(process)
        if process.returncode != 0:
            raise ServiceError(
                f"{shlex.join(argv[1:4])} … failed with status {process.returncode}. "
                f"Log {log} ends with:\n{children.log_tail(log)}"
            )
        with log.open("rb") as handle:
            handle.seek(start)
            return handle.read().decode(errors="replace")

    def _wait_ready(self, spec: ProcessSpec) -> None:
        url = health_url(spec, self.env)
        child = next(child for child in self.children if child.name == spec.name)
        deadline = time.monotonic() + _READY_SECONDS
        waiting = Waiting(f"{spec.name} to answer at {url} (log: {log_path(self.env, spec.name)})", self.say)
        while not _answers(url):
            self._tick()
            waiting.look()
            if child.num_failures >= _MAX_FAILURES_AT_START or time.monotonic() > deadline:
                log = log_path(self.env, spec.name)
                raise ServiceError(
                    f"{spec.name} did not become ready ({url}). Log {log} ends with:\n{children.log_tail(log, 15)}"
                )

    # Run

    def _supervise(self, then: str, exit_after: bool) -> int:
        self.say("Ready.")
        command = self._start_command(then) if then else None
        try:
            while True:
                self._tick()
                if command is not None and (status := command.poll()) is not None:
                    if exit_after:
                        return status
                    self.say(f"The command ended with status {status}. Everything stays up; Ctrl-C ends it.")
                    command = None
        finally:
            if command is not None:
                children.stop(command)

    def _start_command(self, command: str) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        return subprocess.Popen(
            shlex.split(command),
            env=self._marked("command", control_environment(self.env)),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: children.die_with_parent(signal.SIGKILL, parent),
        )

    def _tick(self) -> None:
        """One look at everything: stop on a signal, start again what died."""
        if self.stop_requested:
            raise Stopped
        for child in self.children:
            if (ending := child.notice_end()) is not None:
                self.say(f"{child.name} {ending} Log: {log_path(self.env, child.name)}")
            if child.is_due():
                # What the dead process left running (its own children) must not work beside the new one.
                self._end_remains(child.name)
                child.start()
        time.sleep(_POLL_SECONDS)

    def _end_remains(self, name: str) -> None:
        if name in SERVERS:
            marks.end_all(lambda: [p for p in marks.server_processes(self.env.home) if p.name == name])
        else:
            marks.end_marked(self.mark, name=name)

    def _marked(self, name: str, variables: Mapping[str, str]) -> dict[str, str]:
        return dict(variables) | {marks.SUPERVISOR: self.mark, marks.PROCESS: name}

    # Stop

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stop_requested:  # asked twice: at once
            marks.end_marked(self.mark, spare=SERVERS)
        self.stop_requested = True

    def _stop_all(self) -> None:
        """Workers and web together, then their leftovers, then Valkey and PostgreSQL, which they write to."""
        workers = [child for child in self.children if child.name not in SERVERS]
        if self.children:
            self.say("Stopping …")
        for child in workers:
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(child.stop_signal)
        deadline = time.monotonic() + max([child.stop_seconds for child in workers], default=0.0)
        for child in workers:
            if child.process is not None:
                children.stop(child.process, timeout_seconds=max(deadline - time.monotonic(), 0.0))
        marks.end_marked(self.mark, spare=SERVERS)
        for child in reversed([child for child in self.children if child.name in SERVERS]):
            if child.process is not None:
                children.stop(child.process, gentle=child.stop_signal, timeout_seconds=child.stop_seconds)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310  our own http address
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
