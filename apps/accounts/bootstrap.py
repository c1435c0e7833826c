"""First set-up of an installation: projects, four people with their roles, a token for the engineer."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.db import transaction

from apps.accounts.models import Membership, Project, Role, User
from apps.accounts.services import add_member, create_project, issue_token

PEOPLE: dict[str, str] = {
    "admin": Role.ADMIN,
    "engineer": Role.ENGINEER,
    "manager": Role.APPROVER,
    "reviewer": Role.REVIEWER,
}
TOKEN_USER = "engineer"  # noqa: S105
TOKEN_NAME = "bootstrap"  # noqa: S105


@dataclass
class Bootstrap:
    """What was made. Passwords and the token are in here once and nowhere else."""

    projects: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    passwords: dict[str, str] = field(default_factory=dict)
    token: str = ""


@transaction.atomic
def bootstrap_installation(
    *, projects: Mapping[str, str], passwords: Mapping[str, str] | None = None, new_token: bool = False
) -> Bootstrap:
    """Make what is missing and leave the rest as it is. `projects` maps slug to title.

    A given password is set even where the person exists; without one only new people get a random one. The engineer's
    token is issued when there is none yet, or with `new_token`.
    """
    given = dict(passwords or {})
    result = Bootstrap()
    users = {name: _user(name, given.get(name, ""), result) for name in PEOPLE}
    for slug, title in projects.items():
        project = Project.objects.filter(slug=slug).first()
        if project is None:
            project = create_project(slug=slug, title=title, by=users["admin"])
            result.created.append(f"project {slug}")
        result.projects.append(slug)
        for name, role in PEOPLE.items():
            if not Membership.objects.filter(project=project, user=users[name]).exists():
                add_member(project=project, user=users[name], role=role, by=users["admin"])
    engineer = users[TOKEN_USER]
    if new_token or not engineer.tokens.filter(name=TOKEN_NAME, revoked_at__isnull=True).exists():
        result.token = issue_token(user=engineer, name=TOKEN_NAME, by=None).secret
    return result


def _user(name: str, password: str, result: Bootstrap) -> User:
    user = User.objects.filter(username=name).first()
    if user is None:
        is_admin = name == "admin"
        user = User(username=name, is_staff=is_admin, is_superuser=is_admin)
        password = password or secrets.token_urlsafe(9)
        result.created.append(f"user {name}")
    if password:
        user.set_password(password)
        user.save()
        result.passwords[name] = password
    return user
