"""What is checked before processes start: ports, disk space, a writable home, servers that answer."""

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import psycopg
import redis

from ratchet.services.errors import ServiceError

_LEAST_FREE_BYTES = 512 * 2**20
_ANSWER_SECONDS = 10


def require_free_ports(ports: Mapping[str, int]) -> None:
    """Raise ServiceError naming the variable of the first port that somebody listens on."""
    for variable, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections do not count
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                raise ServiceError(
                    f"Port {port} of 127.0.0.1 cannot be used ({error.strerror}): stop the program that listens on it, "
                    f"or set {variable} to a free port."
                ) from error


def require_usable_home(home: Path) -> None:
    """Make the data folder; raise ServiceError when it cannot be written or its disk is full."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ServiceError(
            f"RATCHET_HOME={home} cannot be made ({error.strerror}): set it to a folder you may write."
        ) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise ServiceError(f"RATCHET_HOME={home} cannot be written by user {os.geteuid()}: set it to another folder.")
    free = shutil.disk_usage(home).free
    if free < _LEAST_FREE_BYTES:
        raise ServiceError(
            f"The disk of RATCHET_HOME={home} is full: {free // 2**20} MB are free, {_LEAST_FREE_BYTES // 2**20} MB "
            "are needed. Make room, or set RATCHET_HOME to a folder on another disk."
        )


def require_database(url: str) -> None:
    """Raise ServiceError where PostgreSQL does not let us in."""
    try:
        psycopg.connect(url, connect_timeout=_ANSWER_SECONDS).close()
    except psycopg.Error as error:
        raise ServiceError(
            f"PostgreSQL of DATABASE_URL does not let us in: {str(error).strip()}. Check host, user, password and that "
            "the database exists; or unset DATABASE_URL to use the embedded one."
        ) from error


def require_redis(url: str) -> None:
    """Raise ServiceError where Valkey or Redis does not answer."""
    try:
        with redis.Redis.from_url(
            url, socket_timeout=_ANSWER_SECONDS, socket_connect_timeout=_ANSWER_SECONDS
        ) as client:
            client.ping()
    except redis.RedisError as error:
        raise ServiceError(
            f"Valkey of REDIS_URL does not answer: {error}. Check host, password and that it runs; or unset REDIS_URL "
            "to use the embedded one."
        ) from error
