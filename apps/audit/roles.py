"""What the application's database role may do: everything but change the schema and what was audited."""

from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.utils import CursorWrapper
from psycopg import sql

APPEND_ONLY = ("audit_auditevent",)
HEADS = ("audit_audithead",)  # moved with each event, never removed


def grant_on_migrate(using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    """After each migration, by the owner: make the application's role where there is none, and give it its rights."""
    app = settings.DATABASE_APP
    if app is None or not app.get("USER"):
        return
    with connections[using].cursor() as cursor:
        grant(cursor, app["USER"], app.get("PASSWORD") or None)


def grant(cursor: CursorWrapper, role: str, password: str | None = None) -> None:
    """Idempotent. The current user owns the tables, and may create roles unless `role` exists."""
    cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role])
    if cursor.fetchone() is None:
        create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(password))
        cursor.execute(create)  # PASSWORD NULL: none, the server's rules decide who may be this role
    for statement in (
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "GRANT USAGE ON SCHEMA public TO {role}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
        "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {role}",
        "REVOKE ALL ON django_migrations FROM {role}",
        "GRANT SELECT ON django_migrations TO {role}",
        *(f"REVOKE ALL ON {table} FROM {{role}}" for table in (*APPEND_ONLY, *HEADS)),
        *(f"GRANT SELECT, INSERT ON {table} TO {{role}}" for table in APPEND_ONLY),
        *(f"GRANT SELECT, INSERT, UPDATE ON {table} TO {{role}}" for table in HEADS),
    ):
        cursor.execute(sql.SQL(statement).format(role=sql.Identifier(role)))
