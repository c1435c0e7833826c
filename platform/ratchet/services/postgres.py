"""Embedded PostgreSQL: the wheel's binaries, our own start and stop, one data folder, a private Unix socket."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql

from ratchet.services import children
from ratchet.services.binaries import postgres_bin
from ratchet.services.errors import ServiceError
from ratchet.services.namespaces import enter_user_namespace, mapped_user, require_user_namespace

_START_SECONDS = 60.0  # crash recovery after kill -9 may replay a long log


@dataclass
class EmbeddedPostgres:
    """One server. `durable=False` trades safety for speed, for tests only."""

    data: Path
    socket_folder: Path
    log: Path
    env: dict[str, str]
    durable: bool = True
    database: str = "ratchet"
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"postgres://postgres@/{self.database}?host={self.socket_folder}"

    def start(self) -> subprocess.Popen[bytes]:
        """Create the data folder when it is new, start, wait until it answers, create the database."""
        self.socket_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if (uid := mapped_user()) is not None:
            require_user_namespace(uid)
        self._create_data_folder()
        self._clear_stale_locks()
        self.process = self.launch()
        if not children.wait_until(self.is_ready, alive=self._is_alive, timeout_seconds=_START_SECONDS):
            children.stop(self.process, gentle=signal.SIGQUIT)
            raise ServiceError(_start_failure(self.log))
        self._create_database()
        return self.process

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the server process without waiting for it."""
        options = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_folder),
            "unix_socket_permissions": "0700",
            "max_connections": "100",
            "shared_buffers": "64MB",
            "jit": "off",
            "log_min_messages": "warning",
            "log_line_prefix": "%m [%p] ",
        }
        if not self.durable:
            options |= {
                "fsync": "off",
                "synchronous_commit": "off",
                "full_page_writes": "off",
                "shared_buffers": "32MB",
            }
        argv = [str(postgres_bin() / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients, which SIGTERM would.
        self.process = children.spawn(
            argv, env=self.env, log=self.log, death_signal=signal.SIGINT, before_exec=_namespace()
        )
        return self.process

    def stop(self) -> None:
        """Fast shutdown; clients are disconnected, the data is checkpointed."""
        if self.process is not None:
            children.stop(self.process, gentle=signal.SIGINT, timeout_seconds=30.0)
            self.process = None

    def is_ready(self) -> bool:
        try:
            with self._connect():
                return True
        except psycopg.OperationalError:
            return False

    def _is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(
            host=str(self.socket_folder), user="postgres", dbname="postgres", autocommit=True, connect_timeout=5
        )

    def _create_data_folder(self) -> None:
        version = self.data / "PG_VERSION"
        if version.exists():
            found, ours = version.read_text().strip(), _major_version()
            if found != ours:
                raise ServiceError(
                    f"{self.data} holds data of PostgreSQL {found}, but version {ours} is installed. Install the "
                    "requirements it was made with, dump it and load the dump, or set RATCHET_HOME to a new folder."
                )
            return
        # A folder from an initdb that was cut short holds nothing worth keeping: rename makes creation atomic.
        fresh = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        argv = [str(postgres_bin() / "initdb"), "-D", str(fresh), "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8"]
        argv += ["--auth-local=trust", "--auth-host=reject", "--no-instructions"]
        argv += ["--no-sync"] if not self.durable else []
        with self.log.open("ab") as output:
            done = subprocess.run(
                argv, env=self.env, stdout=output, stderr=output, stdin=subprocess.DEVNULL, preexec_fn=_namespace()
            )
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise ServiceError(_start_failure(self.log))
        fresh.rename(self.data)

    def _clear_stale_locks(self) -> None:
        """Remove lock files of a server that was killed. The caller holds the data folder's own lock and has
        ended what was left of an earlier supervisor, so nobody else can be using it."""
        for lock in [self.data / "postmaster.pid", *self.socket_folder.glob(".s.PGSQL.*")]:
            lock.unlink(missing_ok=True)

    def _create_database(self) -> None:
        with self._connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database]).fetchone()
            if known is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.database)))


def _namespace() -> Callable[[], None] | None:
    uid = mapped_user()
    return None if uid is None else partial(enter_user_namespace, uid)


def _major_version() -> str:
    done = subprocess.run([str(postgres_bin() / "postgres"), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1].split(".")[0]


def _start_failure(log: Path) -> str:
    tail = children.log_tail(log)
    hint = "Read the whole log, or set DATABASE_URL to a PostgreSQL of your own."
    if "No space left" in tail:
        free = shutil.disk_usage(log.parent).free // 2**20
        hint = f"The disk is full ({free} MB free): make room, or set RATCHET_HOME to a folder on another disk."
    elif "Permission denied" in tail:
        hint = f"The data folder belongs to somebody else (we are user {os.geteuid()}): set RATCHET_HOME to another."
    return f"PostgreSQL did not start. {hint} Log {log} ends with:\n{tail}"
