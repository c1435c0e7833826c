#!/usr/bin/env python
"""Django's entry point; puts `platform/` on sys.path (which must never hold an `__init__.py`)."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def main() -> None:
    sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
    if sys.argv[1:2] and sys.argv[1] in ("up", "down", "status"):  # these run before there is a database
        from ratchet.services.__main__ import main as services

        sys.exit(services(sys.argv[1:]))
    from django.core.management import execute_from_command_line

    from ratchet.env import EnvError, use_settings

    try:
        use_settings()
    except EnvError as error:
        sys.exit(str(error))
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
