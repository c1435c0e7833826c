"""Command line of the machine: up, down, status."""

import argparse
import errno
import os
import signal
import sys
import time

from ratchet.env import EnvError, load_env
from ratchet.services import lock
from ratchet.services.errors import ServiceError
from ratchet.services.memory import memory_table
from ratchet.services.processes import FULL_ENGINE, PROCESSES
from ratchet.services.sentinel import SERVERS
from ratchet.services.supervisor import Supervisor

_DOWN_SECONDS = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `python -m ratchet.services` and of `python manage.py up|down|status`."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.action(options)
    except (EnvError, ServiceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print("error: the disk of RATCHET_HOME is full: make room, or set RATCHET_HOME to another.", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python manage.py", description=__doc__)
    actions = parser.add_subparsers(required=True)
    up = actions.add_parser("up", help="start everything and keep it running")
    up.add_argument("--only", default="", help="comma-separated names: postgres, valkey, web, control, …")
    up.add_argument("--without", default="", help="comma-separated names not to start")
    up.add_argument("--then", default="", help="command to run once everything is ready")
    up.add_argument("--exit", action="store_true", help="end with the command's status when it ends")
    up.set_defaults(action=_up)
    down = actions.add_parser("down", help="stop the supervisor of RATCHET_HOME")
    down.set_defaults(action=_down)
    status = actions.add_parser("status", help="memory of every process of RATCHET_HOME")
    status.set_defaults(action=_status)
    return parser


def _up(options: argparse.Namespace) -> int:
    known = {spec.name for spec in (*PROCESSES, FULL_ENGINE)} | SERVERS
    only, without = _names(options.only), _names(options.without)
    if unknown := (only | without) - known:
        raise ServiceError(f"Unknown process {', '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}.")
    names = frozenset((only or known) - without)
    supervisor = Supervisor(load_env(), _say, names)
    return supervisor.run(options.then, exit_after=options.exit)


def _down(options: argparse.Namespace) -> int:
    path = load_env().home.lock
    holder = lock.holder_of(path)
    if holder is None:
        print("Nothing runs.")
        return 0
    os.kill(holder, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_SECONDS
    while lock.holder_of(path) == holder:
        if time.monotonic() > deadline:
            raise ServiceError(f"The supervisor (process {holder}) did not end in {_DOWN_SECONDS:.0f} s: kill -9 it.")
        time.sleep(0.1)
    return 0


def _status(options: argparse.Namespace) -> int:
    env = load_env()
    holder = lock.holder_of(env.home.lock)
    print(f"Supervisor: process {holder}" if holder else "No supervisor runs.")
    print(memory_table(env.home))
    return 0 if holder else 3


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _say(text: str) -> None:
    print(f"ratchet: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
