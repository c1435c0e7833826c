#!/usr/bin/env python
"""Django's entry point; puts `platform/` on sys.path (which must never hold an `__init__.py`)."""

import sys
from pathlib import Path

NEED_DATABASE = ("bootstrap", "register_base_model", "import_suite", "createsuperuser", "migrate", "shell", "dbshell")
ROOT = Path(__file__).resolve().parent


def main() -> None:
    sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]
    if sys.argv[1:2] and sys.argv[1] in ("up", "down", "status"):  # these run before there is a database
        from ratchet.services.__main__ import main as services

        sys.exit(services(sys.argv[1:]))
    from django.core.management import execute_from_command_line

    from ratchet.env import EnvError, missing_database, use_settings

    try:
        use_settings()
    except EnvError as error:
        sys.exit(str(error))
    if sys.argv[1:2] and sys.argv[1] in NEED_DATABASE and (missing := missing_database()):
        sys.exit(missing)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
