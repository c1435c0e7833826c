"""Writes of accounts: projects, members, API tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import ApiToken, Membership, Project, Role, User
from apps.accounts.notices import TOKEN_REVOKED, publish_on_commit
from apps.accounts.permissions import Actor, Permission, check_scopes, not_found, require, require_superuser
from apps.accounts.tokens import PREFIX_LENGTH, digest_of, make_secret
from apps.audit.services import record
from ratchet.problems import Problem

DEFAULT_TOKEN_DAYS = 90
MAX_TOKEN_DAYS = 366


@dataclass(frozen=True)
class IssuedToken:
    """A new token with its secret, which is never seen again."""

    token: ApiToken
    secret: str


@transaction.atomic
def create_project(*, slug: str, title: str, by: User | None) -> Project:
    """A new project with `by` as its admin. Raises Problem 409 where the slug is taken."""
    require_superuser(by)
    if Project.objects.filter(slug=slug).exists():
        errors = [{"path": "slug", "message": "is taken"}]
        raise Problem("project_exists", 409, f"There is a project {slug!r} already: choose another slug.", errors)
    project = Project.objects.create(slug=slug, title=title or slug)
    record(tag="user:project:create", by=by, project=project, subject=project, after={"slug": slug, "title": title})
    if by is not None:
        add_member(project=project, user=by, role=Role.ADMIN, by=by)
    return project


@transaction.atomic
def rename_project(*, project: Project, title: str, by: User | None) -> Project:
    """Give a project another title; its slug stays, since addresses and specs name it."""
    require(by, Permission.PROJECT_UPDATE, project)
    project = lock_project(project)
    if project.title != title:
        before, project.title = project.title, title
        project.save(update_fields=["title"])
        was, now = {"title": before}, {"title": title}
        record(tag="user:project:rename", by=by, project=project, subject=project, before=was, after=now)
    return project


def lock_project(project: Project) -> Project:
    """The row as it is now, held until the transaction ends: nobody else renames it, or gives or takes a role in it.

    Members have no lock of their own: two that are taken in turn are a deadlock.
    """
    return Project.objects.select_for_update(no_key=True).get(pk=project.pk)


@transaction.atomic
def add_member(*, project: Project, user: User, role: str, by: User | None) -> Membership:
    """Give a user a role in the project, in place of any other."""
    lock_project(project)
    require(by, Permission.MEMBER_MANAGE, project)
    if role not in Role.values:
        errors = [{"path": "role", "message": f"{role!r} is not one of {', '.join(Role.values)}"}]
        raise Problem("invalid", 400, f"There is no role {role!r}.", errors)
    membership = Membership.objects.filter(project=project, user=user).first()
    before = {"user": user.get_username(), "role": membership.role} if membership else None
    if membership and membership.role == role:
        return membership
    if membership:
        _keep_an_admin(membership)
        membership.role = role
        membership.save(update_fields=["role"])
    else:
        membership = Membership.objects.create(project=project, user=user, role=role)
    after = {"user": user.get_username(), "role": role}
    record(tag="user:member:set", by=by, project=project, subject=membership, before=before, after=after)
    return membership


@transaction.atomic
def remove_member(*, membership: Membership, by: User | None) -> None:
    """Take a user's role away. The last admin stays. Raises Problem 404 where somebody else did it meanwhile."""
    lock_project(membership.project)
    require(by, Permission.MEMBER_MANAGE, membership.project)
    found = Membership.objects.select_related("project", "user").filter(pk=membership.pk).first()
    if found is None:
        raise not_found()
    membership = found
    _keep_an_admin(membership)
    before = {"user": membership.user.get_username(), "role": membership.role}
    record(tag="user:member:remove", by=by, project=membership.project, subject=membership, before=before)
    membership.delete()


@transaction.atomic
def issue_token(
    *,
    user: User,
    name: str,
    by: Actor,
    project: Project | None = None,
    scopes: Iterable[str] = (),
    days: int = DEFAULT_TOKEN_DAYS,
    expires_at: datetime | None = None,
) -> IssuedToken:
    """A new token for the user, good for `days` or until `expires_at`. One made through a token is never wider or
    longer-lived than that."""
    if by is not None and by.pk != user.pk:
        raise Problem("forbidden", 403, "A token can only be issued for yourself.")
    if not name.isprintable():
        errors = [{"path": "name", "message": "has characters that are not shown, or turn the text around"}]
        raise Problem("invalid", 400, "The name cannot be used.", errors)
    expires_at = _expiry(days, expires_at)
    wanted = check_scopes(scopes)
    if project is not None:
        require(by, Permission.TOKEN_CREATE, project)
    if isinstance(by, User):
        _stay_within(by, project, wanted)
        expires_at = min(expires_at, by.token_expires_at or expires_at)
    secret = make_secret()
    token = ApiToken.objects.create(
        user=user,
        project=project,
        name=name,
        prefix=secret[:PREFIX_LENGTH],
        digest=digest_of(secret),
        scopes=wanted,
        expires_at=expires_at,
    )
    after = {"name": name, "prefix": token.prefix, "scopes": wanted, "expires_at": expires_at}
    record(tag="user:token:issue", by=by or user, project=project, subject=token, after=after)
    return IssuedToken(token, secret)


@transaction.atomic
def revoke_token(*, token: ApiToken, by: User | None) -> ApiToken:
    """End a token now; gateways are told. Repeating it changes nothing."""
    if by is not None and by.pk != token.user_id and not by.is_superuser:
        raise not_found()
    token = ApiToken.objects.select_for_update(of=("self",)).select_related("project").get(pk=token.pk)
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
        publish_on_commit({"kind": TOKEN_REVOKED, "sha256": token.digest})
        record(tag="user:token:revoke", by=by, project=token.project, subject=token, before={"prefix": token.prefix})
    return token


def _expiry(days: int, expires_at: datetime | None) -> datetime:
    now = timezone.now()
    path, until = ("days", now + timedelta(days=days)) if expires_at is None else ("expires_at", expires_at)
    if not now < until <= now + timedelta(days=MAX_TOKEN_DAYS, minutes=1):
        errors = [{"path": path, "message": f"must be between 1 and {MAX_TOKEN_DAYS} days from now"}]
        raise Problem("invalid", 400, f"A token lives between 1 and {MAX_TOKEN_DAYS} days.", errors)
    return until


def _stay_within(by: User, project: Project | None, scopes: list[str]) -> None:
    if by.token_scopes and Permission.TOKEN_CREATE not in by.token_scopes:
        raise Problem("forbidden", 403, "The token you came with has no scope token:create.")
    if by.token_scopes and (not scopes or not by.token_scopes.issuperset(scopes)):
        errors = [{"path": "scopes", "message": f"must be some of {', '.join(sorted(by.token_scopes))}"}]
        raise Problem("forbidden", 403, "A token cannot issue one with more scopes than its own.", errors)
    if by.token_project_id and (project is None or project.pk != by.token_project_id):
        errors = [{"path": "project", "message": "must be the project of the token you came with"}]
        raise Problem("forbidden", 403, "A token of one project cannot issue one for more.", errors)


def _keep_an_admin(membership: Membership) -> None:
    """Refuse to take the last admin of a project away."""
    if membership.role != Role.ADMIN:
        return
    admins = Membership.objects.filter(project_id=membership.project_id, role=Role.ADMIN)
    if not admins.exclude(pk=membership.pk).exists():
        raise Problem("last_admin", 409, "This is the project's last admin: make someone else admin first.")
